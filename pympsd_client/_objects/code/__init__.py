"""Device code: modules, launches and occupancy, libraries and their kernels, and the linking of images."""
