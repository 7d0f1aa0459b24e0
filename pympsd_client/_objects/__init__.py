"""Contexts, streams, events, modules and memory of this process."""
