"""Processes: servers as children, what the kernel says about a process, what another user can reach."""
