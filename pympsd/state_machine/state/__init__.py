"""The daemon's state, in parts; nothing here depends on events, instructions or decisions."""
