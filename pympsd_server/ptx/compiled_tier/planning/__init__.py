"""This package plans the text of a kernel: where its lanes and warps may wait for each other, and which registers and
addresses the lanes share. analysis.py has the theory of operation.
"""
