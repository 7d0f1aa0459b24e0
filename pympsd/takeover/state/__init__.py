"""The contents of the state file, and reading it by a daemon of other devices or of another protocol."""
