"""The control daemon of pympsd, and the modules that all three programs share (vocabulary, wire, devices,
journal).
"""
