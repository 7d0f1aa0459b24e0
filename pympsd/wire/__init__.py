"""Bytes that travel between the programs: framing, messages, the command stream's records. Sans-I/O."""
