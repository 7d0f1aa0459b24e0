"""Managed memory: one address for program and kernels."""
