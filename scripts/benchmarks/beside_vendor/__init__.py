"""``scripts/bench vendor``: pympsd with the driver's own server, beside the vendor's daemon with the same one."""
