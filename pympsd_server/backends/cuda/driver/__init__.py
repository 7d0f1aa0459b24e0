"""Calls of the CUDA driver, and what is counted and reported about them."""
