"""Processes: their status, credentials and descriptors, and the memory of the driver's clients."""
