"""This package compiles kernels to machine code by LLVM, a warp as a vector (theory of operation: kernel_text.py)."""
