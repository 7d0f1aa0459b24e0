"""The operator's grammar: a registry of commands, one decorator each, and readers of their arguments. Pure."""
