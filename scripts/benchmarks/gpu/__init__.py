"""``scripts/bench gpu``: pympsd on a GPU next to time slicing, the vendor's MPS and a prototype, in one run."""
