"""``scripts/bench vendor``: pympsd with the driver's own server, next to the vendor's daemon with the same one."""
