"""The modules of the product whose docstrings have examples, as doctest finds them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)


def modules_with_examples(*packages: str) -> list[str]:
    """Return the names of the packages' modules that have at least one example."""
    files = (file for package in packages for file in sorted((ROOT / package).rglob("*.py")))
    paths = (file.relative_to(ROOT) for file in files if _EXAMPLE.search(file.read_text()))
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
