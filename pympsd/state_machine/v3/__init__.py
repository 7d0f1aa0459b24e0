"""Named servers and their namespaces (protocol 3)."""
