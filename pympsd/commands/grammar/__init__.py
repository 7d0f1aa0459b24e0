"""How operator commands work: how a line is split, and how a command is declared, registered, read and run."""
