"""Takeover: a daemon takes over the sockets, clients and servers of one that was killed or replaced."""
