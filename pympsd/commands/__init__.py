"""This package has the operator commands: `grammar` reads and runs them, `v2` and `v3` define them.

Importing this package registers all.
"""

from pympsd.commands.grammar.registry import load

for _package in ("v2", "v3"):
    load(f"{__name__}.{_package}", [f"{folder}/{_package}" for folder in __path__])
