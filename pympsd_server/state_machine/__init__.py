"""What a server decides: its clients and contexts, its phases, what a context may use. Pure."""
