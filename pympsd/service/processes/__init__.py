"""This package finds out about processes: their status, credentials and descriptors, and the memory of the driver's
clients.
"""
