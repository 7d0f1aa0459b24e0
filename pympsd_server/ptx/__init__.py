"""Execute PTX on the CPU: load an image, link it into a client's memory, run batches of CTAs.

A kernel's basic blocks become Python functions in which each instruction is a NumPy operation over a group of threads
(`numpy_tier`), or machine code (`compiled_tier`). `loading.program.load_program` refuses unsupported PTX, by name and
line.
"""
