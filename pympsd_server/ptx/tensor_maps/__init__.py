"""Copies and reductions of tiles by tensor maps (PTX ISA: cp.async.bulk.tensor, tensormap)."""
