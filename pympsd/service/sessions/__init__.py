"""The daemon's conversations: with clients, with operators, and with servers."""
