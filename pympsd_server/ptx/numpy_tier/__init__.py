"""The reference tier: every basic block becomes a Python function of NumPy operations over all its threads."""
