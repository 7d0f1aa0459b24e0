"""The decisions of a server: its clients and contexts, its phases, the limits of a context. Sans-I/O."""
