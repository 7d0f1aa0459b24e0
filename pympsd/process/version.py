"""The versions of pympsd and of the CUDA driver API that it reports, and the build id.

A server refuses an executor of another build. Imports nothing at first, so that commands start fast.
"""

VERSION = "0.2.0"
"""The release, as in pyproject.toml (which reads it here)."""

CUDA_VERSIONS = {580: 13000, 590: 13010}
"""The driver branches whose behaviour pympsd has, with the version that the version texts report: 1000 x major + 10 x
minor (CUDA 13.1). ``--driver`` chooses one, see `pympsd.devices.discovery`."""
DRIVER = 590
"""The branch that is taken if none is chosen."""
CUDA_VERSION = 13000

API_VERSION = 13010
"""The version of the driver API that programs have, as cuDriverGetVersion reports it (CUDA 13.1)."""

DRIVER_BRANCH = 580
"""The driver whose recorded behaviour pympsd follows, as server.log prints it."""

DRIVER_VERSION = f"{DRIVER_BRANCH}.0"
"""The driver's version in dotted form; scripts split it at the dot."""

EXTRAS = "_extras"
"""The folder of files that come with the packages and are not part of them (pympsd/cli/extras.py)."""
PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")
_build: "list[str]" = []


def build_id() -> str:
    """Return the version and 12 hexadecimal digits of a digest of the three packages' sources.

    The first call takes some milliseconds.
    """
    if not _build:
        _build.append(f"{VERSION}+{_digest()[:12]}")
    return _build[0]


def _digest() -> str:
    from hashlib import sha256
    from pathlib import Path

    digest = sha256()
    root = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root)
            if EXTRAS in name.parts:
                continue  # examples, which only an installed package holds
            digest.update(str(name).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
