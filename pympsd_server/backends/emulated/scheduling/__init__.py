"""Scheduling: choose the work that runs next, and place its blocks."""
