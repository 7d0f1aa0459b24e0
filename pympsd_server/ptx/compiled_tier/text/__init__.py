"""This package writes a kernel as a function of LLVM's intermediate representation: its registers, memory accesses,
stops and instructions. kernel_text.py has the theory of operation of the tier.
"""
