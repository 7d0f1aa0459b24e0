"""The keeper holds a daemon's descriptors: its program, its packets, and the daemon's side of its link."""
