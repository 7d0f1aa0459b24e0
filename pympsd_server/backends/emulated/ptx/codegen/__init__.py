"""Basic blocks to Python functions over NumPy arrays."""
