"""Which work runs next, and where its blocks are placed."""
