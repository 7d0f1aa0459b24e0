"""Backends, which run the work: one port (interface.py) and two implementations; executor/main.py chooses one."""
