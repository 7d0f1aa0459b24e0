"""What the daemon decides: events in, instructions out. No clock, no socket, no trio. Pure."""
