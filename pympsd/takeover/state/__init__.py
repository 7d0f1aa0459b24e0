"""What the state file holds, and how it is read by a daemon of other devices or of another protocol."""
