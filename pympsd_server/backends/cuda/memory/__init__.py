"""Device memory, address ranges, staging and copies."""
