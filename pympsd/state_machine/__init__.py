"""What the daemon decides: events in, instructions out. Pure: no clock, no sockets, no trio."""
