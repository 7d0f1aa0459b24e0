"""The build id: a digest of the three packages' sources, by which a server refuses an executor of another build."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from pympsd.version import VERSION

EXTRAS = "_extras"
"""The folder of what comes with the packages and is no part of them (pympsd/cli/extras.py)."""
PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")


@cache
def build_id() -> str:
    """Return the version and the first 12 hexadecimal digits of the digest (a few milliseconds, once)."""
    digest = sha256()
    root = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root)
            if EXTRAS in name.parts:
                continue  # examples, which only an installed package holds
            digest.update(str(name).encode())
            digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()[:12]}"
