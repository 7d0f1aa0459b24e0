"""Memory of the program that kernels reach once it is registered."""
