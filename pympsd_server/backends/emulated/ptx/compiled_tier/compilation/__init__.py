"""Kernels' machine code: written by LLVM in a process of its own, kept on disk, loaded."""
