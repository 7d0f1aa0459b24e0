"""This package does the running daemon's I/O: it awaits, opens files and starts processes."""
