"""This package makes, checks and removes the files of the pipe directory: lock, PID file, sockets, log FIFO, state
file.
"""
