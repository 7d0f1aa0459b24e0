"""Backends, which run the work: one port (interface.py) and its implementations; selection.py chooses."""
