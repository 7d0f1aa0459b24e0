"""This package loads, stores and multiplies matrices in registers of a warp (ldmatrix, stmatrix, movmatrix, mma)."""
