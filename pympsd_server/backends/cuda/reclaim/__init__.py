"""Deferred frees and releases: when no work can use the object any more."""
