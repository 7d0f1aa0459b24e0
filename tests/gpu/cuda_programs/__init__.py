"""Unmodified CUDA programs for the tests of the vendor backend, and how they are started."""
