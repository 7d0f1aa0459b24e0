"""``pympsd top``: servers, their clients, and who waits, in one table that is kept up to date."""
