"""The contents of the state file, which a daemon with other devices or another protocol can read, too."""
