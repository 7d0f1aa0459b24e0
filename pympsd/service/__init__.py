"""The running daemon's I/O: this package awaits, opens files and starts processes."""
