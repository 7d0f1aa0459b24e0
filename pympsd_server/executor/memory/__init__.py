"""Clients' memory on the device and in page-locked host memory: limits, addresses, reports to the owner."""
