"""The image of this checkout, built once for the tests of containers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import adopt_orphans

from .podman import Podman, find_missing


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman with the image; the tests are skipped, with the reason, where it cannot be run."""
    if missing := find_missing():
        pytest.skip(f"no image can be built: {', '.join(missing)} missing (Debian's packages have these names)")
    folder = Path(tempfile.mkdtemp(prefix="pympsd-image-", dir="/var/tmp"))  # short, and not on a tmpfs
    podman = Podman(folder)
    try:
        podman.configure()
        podman.make_image()
        yield podman
        podman.remove_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_monitors() -> Iterator[None]:
    """Reap the processes that watch containers."""
    adopt_orphans()
    yield
    adopt_orphans(False)
