"""The commands of protocol 2 (drivers 580 and 590), a module for each topic."""
