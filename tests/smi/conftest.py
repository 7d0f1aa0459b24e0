"""A node with a complete description, in a folder that every user can reach."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_node import Node

UUIDS = tuple(f"GPU-0000000{n}-23a2-2403-a46b-a1dfeabe3819" for n in range(4))
TEXT = "\n".join(f'[[device]]\nuuid = "{uuid}"\npci = "0000:00.{6 + n:02x}.00"' for n, uuid in enumerate(UUIDS))


@pytest.fixture
def node() -> Iterator[Node]:
    """Four H200 of 143771 MiB."""
    directory = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    directory.chmod(0o755)
    yield Node(directory, TEXT)
    shutil.rmtree(directory)
