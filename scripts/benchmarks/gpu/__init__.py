"""``scripts/bench gpu``: pympsd on a GPU beside time slicing, the vendor's MPS and a prototype, in one run."""
