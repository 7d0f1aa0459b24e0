"""Conversations on the driver's own wire: its MPS server, libcuda's clients, and the vendor's tool."""
