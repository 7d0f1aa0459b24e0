"""The files of the pipe directory: lock, pid file, sockets, log FIFO, state file."""
