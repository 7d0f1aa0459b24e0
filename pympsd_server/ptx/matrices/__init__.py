"""Matrices that the lanes of a warp hold together (PTX ISA: ldmatrix, stmatrix, movmatrix, mma)."""
