"""The operator commands: `grammar` is the machine, `v2` and `v3` the commands, which this registers."""

from pympsd.commands.grammar.registry import load

for _package in ("v2", "v3"):
    load(f"{__name__}.{_package}", [f"{folder}/{_package}" for folder in __path__])
