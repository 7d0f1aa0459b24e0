"""How a program reaches a daemon, a private executor, or the native driver."""
