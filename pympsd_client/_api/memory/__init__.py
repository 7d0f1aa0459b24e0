"""Memory of every kind (CUDA driver API, Memory Management and related chapters)."""
