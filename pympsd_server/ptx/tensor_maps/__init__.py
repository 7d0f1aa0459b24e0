"""This package copies and reduces boxes of a tensor (PTX ISA: cp.async.bulk.tensor, tensormap)."""
