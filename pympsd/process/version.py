"""The versions of pympsd and of the CUDA driver API that it reports, and the build id.

A server refuses an executor of another build. Imports nothing at the top, so that commands start fast.
"""

VERSION = "0.2.0"
"""The release, as in pyproject.toml (which reads it here)."""

CUDA_VERSIONS = {580: 13000, 590: 13010}
"""The driver branches that pympsd reproduces, with the CUDA version that their texts report: 1000 x major + 10 x
minor. ``--driver`` chooses one, see `pympsd.devices.discovery`.
"""
DRIVER = 590
"""The default driver branch."""
CLIENT_CONTEXTS = {580: 48, 590: 60}
"""The maximum number of client contexts on a device, by branch, on Volta and newer (CUDA's documents, "When to Use
MPS").
"""

VENDOR_DRIVER = 580
"""The driver branch whose own server pympsd can manage."""
STATIC_SINCE = 590
"""The first driver branch whose protocol 2 has static SM partitions."""

API_VERSION = max(CUDA_VERSIONS.values())
"""The version of the driver API that cuDriverGetVersion reports, with every branch."""

EXTRAS = "_extras"
"""The folder of files that are installed with the packages but are not part of them (pympsd/cli/extras.py)."""
PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")
_build: "list[str]" = []


def driver_version(driver: int) -> str:
    """Return the version of a driver branch in dotted form, which scripts split at the dot: "590.0"."""
    return f"{driver}.0"


def cuda_version(driver: int) -> str:
    """Return the version of CUDA of a driver branch as nvidia-smi prints it: "13.1"."""
    number = CUDA_VERSIONS[driver]
    return f"{number // 1000}.{number % 1000 // 10}"


def build_id() -> str:
    """Return the version and 12 hexadecimal digits of a digest of the three packages' sources.

    The first call takes some milliseconds.
    """
    if not _build:
        _build.append(f"{VERSION}+{_digest()[:12]}")
    return _build[0]


def _digest() -> str:
    from hashlib import sha256
    from operator import attrgetter
    from pathlib import Path

    digest = sha256()
    root = Path(__file__).resolve().parents[2]
    folders = [(package, root / package) for package in PACKAGES]
    while folders:  # not Path.rglob, which takes three times as long: every cuInit waits for this
        name, folder = folders.pop()
        for path in sorted(folder.iterdir(), key=attrgetter("name")):
            entry = path.name
            if entry.endswith(".py"):
                digest.update(f"{name}/{entry}".encode())
                digest.update(path.read_bytes())
            # Leave out the extras: they are examples that only an installed package contains.
            elif "." not in entry and entry not in ("__pycache__", EXTRAS) and path.is_dir():
                folders.append((f"{name}/{entry}", path))
    return digest.hexdigest()
