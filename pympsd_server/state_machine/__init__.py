"""The decisions of a server: its clients and contexts, its phases, what a context may use. Sans-I/O."""
