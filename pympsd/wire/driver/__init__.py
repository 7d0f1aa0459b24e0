"""Encode and decode the packets of the driver's own MPS server, tool and libcuda (recorded with driver 580)."""
