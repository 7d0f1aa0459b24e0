"""Connecting a program to a daemon, a private executor, or the native driver."""
