"""This package reads textures, and reads and writes surfaces."""
