"""Issuing work to the driver, and seeing its end."""
