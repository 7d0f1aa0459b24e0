"""What travels between the programs: framing, messages, the command stream's records. Pure."""
