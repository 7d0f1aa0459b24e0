"""The commands of driver 580 (protocol 2), a module for each topic."""
