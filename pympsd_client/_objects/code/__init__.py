"""Code that belongs to no context: libraries and their kernels, and the linking of images."""
