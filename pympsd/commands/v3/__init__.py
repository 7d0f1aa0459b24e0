"""The commands of protocol 3 (driver 615)."""
