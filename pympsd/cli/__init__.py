"""This package reads the command line, gives commands to a running daemon, and starts the daemon."""
