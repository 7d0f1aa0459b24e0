"""CUDA arrays."""
