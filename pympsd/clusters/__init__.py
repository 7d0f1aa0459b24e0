"""Shares of GPUs for the workers of Dask and Ray."""
