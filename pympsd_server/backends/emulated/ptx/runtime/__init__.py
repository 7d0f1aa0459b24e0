"""What generated code calls: threads, memory spaces, barriers, warps, atomics."""
