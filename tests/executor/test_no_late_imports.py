"""Nothing is imported after READY: the package may be replaced under a running executor (an upgrade in place)."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

from pympsd.vocabulary.results import Result
from tests.executor.executor_owner import PROGRAM, ExecutorOwner
from tests.executor.raw_client import STORE, TRAPPED


def test_nothing_is_imported_after_ready(tmp_path: Path) -> None:
    listing = tmp_path / "imports"
    with listing.open("wb") as stderr:
        owner = ExecutorOwner.start(python_options=("-X", "importtime"), stderr=stderr)
    try:
        owner.ready()
        before = listing.read_text()
        client = owner.attach(client=1, context=1)
        module, _ = client.load()
        address = client.allocate(1 << 20)
        client.write(address, b"a" * 1000)
        client.launch(module, STORE, struct.pack("=QI", address, 1), grid=(64, 1, 1), block=(64, 1, 1))
        assert client.read(address, 4) == struct.pack("=I", 1)
        client.send("FILL", 0, address, 1, 4, 16, 0, 1)
        client.launch(module, TRAPPED)
        assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_LAUNCH_FAILED
        owner.receive()
        owner.drop(1)
        after = listing.read_text()
    finally:
        owner.close()
    assert "pympsd_server.executor" in before
    assert after[len(before) :] == ""


def test_the_stub_finds_its_packages_from_anywhere(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-I", str(PROGRAM), "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--link-fd" in answer.stdout
