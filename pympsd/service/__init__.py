"""The running daemon: the only part of it that awaits, opens and forks."""
