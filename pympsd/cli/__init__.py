"""The command line: options, commands to a running daemon, and the daemon's start."""
