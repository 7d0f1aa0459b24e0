"""CUDA arrays, and the textures and surfaces through which kernels access them."""
