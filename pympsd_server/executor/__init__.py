"""The process that owns one device, with a link to its owner, a worker for each client, and a backend."""
