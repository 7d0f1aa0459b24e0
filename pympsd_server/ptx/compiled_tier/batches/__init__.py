"""This package runs batches of blocks as machine code, and chooses the tier of each batch. batch.py has the theory of
operation.
"""
