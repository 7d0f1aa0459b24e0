"""The backend for a real GPU: one primary context for all clients. Only this package calls the driver."""
