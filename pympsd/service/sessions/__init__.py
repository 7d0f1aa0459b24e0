"""The daemon's sessions with clients, operators and servers."""
