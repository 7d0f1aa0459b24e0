"""Messages over Unix sockets, with file descriptors, for trio programs."""
