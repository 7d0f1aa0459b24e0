"""This package has the functions that generated code calls: threads, memory spaces, barriers, warps, atomics."""
