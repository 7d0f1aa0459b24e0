"""This package sends and receives messages, with file descriptors, over Unix sockets in trio programs."""
