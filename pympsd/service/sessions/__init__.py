"""This package holds the daemon's sessions with clients, operators and servers."""
