"""The MPS server: owns the devices of one user and runs the work of that user's clients."""
