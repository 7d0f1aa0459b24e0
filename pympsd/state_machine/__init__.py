"""The decisions of the daemon: they turn events into instructions. Sans-I/O: no clock, no sockets, no trio."""
