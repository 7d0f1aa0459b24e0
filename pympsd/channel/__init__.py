"""Frames and messages over Unix sockets, with file descriptors beside them: one way to await, one to block."""
