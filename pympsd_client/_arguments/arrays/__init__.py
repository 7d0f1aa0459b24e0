"""Structures that describe arrays, textures and surfaces."""
