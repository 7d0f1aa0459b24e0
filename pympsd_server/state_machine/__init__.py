"""What a server decides: who is here, its phases, what a context may use. Pure."""
