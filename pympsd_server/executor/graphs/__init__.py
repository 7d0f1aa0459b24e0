"""Executable graphs in the executor."""
