"""CUDA arrays, and the textures and surfaces that kernels read them by."""
