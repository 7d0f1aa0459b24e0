"""Memory of every kind (CUDA driver API, Memory Management and its further chapters)."""
