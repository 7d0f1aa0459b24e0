"""The wire of the driver's own MPS server, tool and libcuda."""
