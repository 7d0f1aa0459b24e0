"""This package splits an operator's line, and declares, registers, reads and runs commands."""
