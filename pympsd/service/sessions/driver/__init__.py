"""This package holds conversations in the driver's own protocol: with its MPS server, libcuda's clients, and the
vendor's tool.
"""
