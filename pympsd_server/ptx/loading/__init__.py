"""Load an image as a program, and link a program as a module in a client's memory."""
