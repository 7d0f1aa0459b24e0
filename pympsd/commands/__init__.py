"""The operator commands: a registry, one decorator for each command, and argument readers. Pure."""
