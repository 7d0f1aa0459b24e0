"""The control daemon of pympsd, and the words its three programs share (vocabulary, wire, devices, journal)."""
