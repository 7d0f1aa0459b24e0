"""Processes: servers as children, process status from the kernel, file access of other users."""
