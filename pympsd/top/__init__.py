"""``pympsd top``: servers, their clients and the queue, in one table that is updated continuously."""
