"""The control daemon of pympsd, and what its three programs share (vocabulary, wire, devices, journal)."""
