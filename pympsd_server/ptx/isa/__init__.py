"""The PTX instruction set: its types, the machine that code sees, and the faults of programs and kernels."""
