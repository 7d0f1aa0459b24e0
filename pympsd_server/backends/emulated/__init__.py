"""The embedded emulated GPU: real PTX, executed with NumPy."""
