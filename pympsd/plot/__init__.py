"""``pympsd plot``: draw traces as SVG, PNG or PDF."""
