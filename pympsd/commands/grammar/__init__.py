"""The machine of the operator commands: how a line is split, how a command is declared, registered, read and run."""
