"""Graphs: nodes and edges, their work, capture of streams, executable graphs (CUDA driver API, Graph Management)."""
