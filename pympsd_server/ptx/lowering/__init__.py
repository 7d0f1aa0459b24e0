"""A syntax tree to flat operations: names resolved, calls inlined, basic blocks found."""
