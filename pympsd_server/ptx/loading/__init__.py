"""This package loads an image as a program, and links a program as a module in a client's memory."""
