"""The backend for a real GPU: one primary context for all clients, through cuda-bindings; driver calls only here."""
