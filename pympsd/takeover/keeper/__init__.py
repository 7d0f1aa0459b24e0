"""The keeper: its program, its packets, and the daemon's side of it."""
