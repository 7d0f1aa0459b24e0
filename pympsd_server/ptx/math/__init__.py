"""This package computes as PTX defines it, where NumPy has no such operation."""
