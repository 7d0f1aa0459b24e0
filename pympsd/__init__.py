"""pympsd's control daemon, and the modules that the three programs share (vocabulary, wire, devices, journal)."""
