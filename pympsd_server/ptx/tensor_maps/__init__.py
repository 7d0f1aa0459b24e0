"""Copies and reductions of boxes of a tensor (PTX ISA: cp.async.bulk.tensor, tensormap)."""
