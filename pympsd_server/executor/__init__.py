"""The process that owns one device: link to its owner, a worker for each client, the backend port below."""
