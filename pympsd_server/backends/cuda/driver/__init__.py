"""Calls of the CUDA driver, counters, and reports of internal errors."""
