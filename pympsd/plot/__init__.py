"""``pympsd plot``: draws traces, as SVG, PNG or PDF."""
