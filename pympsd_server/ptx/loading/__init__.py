"""Load an image as a program, and a program as a module in the memory of one client."""
