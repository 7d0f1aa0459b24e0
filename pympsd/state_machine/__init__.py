"""The daemon's decisions: events in, instructions out. Sans-I/O: no clock, no sockets, no trio."""
