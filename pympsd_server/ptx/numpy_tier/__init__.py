"""This package is the reference tier: it turns each basic block into a Python function of NumPy operations."""
