"""This package compiles kernels to machine code by LLVM, a warp as a vector.

text/kernel_text.py has the theory of operation. A kernel passes through the folders in this order, and each folder
imports only from those before it:

    planning      where lanes and warps may wait for each other; which registers and addresses the lanes share
    text          the kernel as a function of LLVM's intermediate representation
    compilation   LLVM in processes of its own; compiled kernels in memory and on disk
    batches       batches of blocks: which tier runs them, and how the runtime in C runs their warps

Two modules that all folders use are here: ir_text.py writes the text of instructions, and native_runtime.py declares
the runtime in C.
"""
