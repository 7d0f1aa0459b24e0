"""The running daemon: the part that awaits, opens files and starts processes."""
