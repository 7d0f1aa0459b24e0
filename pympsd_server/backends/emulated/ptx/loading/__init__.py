"""From an image to a program, and from a program to a module in the memory of one client."""
