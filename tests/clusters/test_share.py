"""Shares of GPUs: their variables, what is refused, and how a machine's workers get parts of its devices."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.clusters import share
from pympsd.clusters.share import BadShare, Share, lock_part, share_of, take
from pympsd.control import Device
from pympsd.vocabulary.limits import PinnedMemory, ThreadPercentage

GIB = 1 << 30
SECONDS = 30
DEVICES = [Device(ordinal, f"GPU-{ordinal}", "0:0", "H200", 132, 140 * GIB) for ordinal in range(2)]
HOLDER = """
import sys
from pympsd.clusters.share import lock_part
from pympsd.clusters.share import BadShare
from pympsd.control import Device
devices = [Device(ordinal, f"GPU-{ordinal}", "0:0", "H200", 132, 1 << 37) for ordinal in range(2)]
for wanted in sys.argv[1].split():
    try:
        print(lock_part(devices, float(wanted), sys.argv[2]).uuid, flush=True)
    except BadShare as error:
        print(error, flush=True)
sys.stdin.read()
"""


@given(st.floats(0.01, 1, exclude_max=True), st.integers(GIB, 300 * GIB))
def test_a_fraction_is_a_percentage_and_a_memory_limit_that_clients_accept(fraction: float, memory: int) -> None:
    variables = share_of([Device(0, "GPU-x", "0:0", "H200", 132, memory)], fraction).variables()
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-x"
    percentage = ThreadPercentage.parse(variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    assert percentage.value == pytest.approx(100 * fraction, abs=0.01)
    device, _, limit = variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].partition("=")
    bytes_ = PinnedMemory.parse(limit)
    assert device == "GPU-x"
    assert bytes_ is not None
    assert 0 <= fraction * memory - bytes_.value < 1 << 20


def test_whole_devices_have_no_limits() -> None:
    assert share_of(DEVICES[:1], 1).variables() == {"CUDA_VISIBLE_DEVICES": "GPU-0"}
    assert share_of(DEVICES, 2).variables() == {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}


@pytest.mark.parametrize(
    ("count", "requested"), [(1, 0), (1, 0.001), (1, -1), (1, 2), (2, 0.5), (2, 1), (2, 1.5), (0, 1)]
)
def test_what_cannot_be_a_share_is_refused(count: int, requested: float) -> None:
    with pytest.raises(
        BadShare, match=r"of \d GPUs: a share must be 0.01 to 1 of one GPU, or a whole number of GPUs"
    ):
        share_of(DEVICES[:count], requested)


def test_a_process_has_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_taken", {})
    environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7", "PATH": "/bin"}
    whole, half = Share(("GPU-0",), 1.0), Share(("GPU-0",), 0.5, GIB)
    take(whole, environment, {})
    take(whole, environment, {})
    assert environment == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "GPU-0"}
    with pytest.raises(BadShare, match=r"has CUDA_VISIBLE_DEVICES=GPU-0 already, and cannot get .*max_calls=1"):
        take(half, environment, {})


def test_a_share_comes_before_the_first_use_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_taken", {})
    client = SimpleNamespace(process=SimpleNamespace(connection=object()))
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    for name, module in (("pympsd_client._objects.process", client), ("torch", torch)):
        with pytest.raises(BadShare, match="has begun to use a GPU before"):
            take(Share(("GPU-0",), 1.0), {}, {name: module})


def _holder(folder: Path, requested: str) -> subprocess.Popen[str]:
    """Start a process that takes parts, and keeps them until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", HOLDER, requested, str(folder / "locks")]
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def test_parts_of_devices_are_given_out_and_come_back_with_their_processes(tmp_path: Path) -> None:
    start = partial(_holder, tmp_path)

    def read_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    holders = [start("0.5") for _ in range(4)]
    try:
        assert Counter(map(read_line, holders)) == {"GPU-0": 2, "GPU-1": 2}
        late = start("0.25")
        holders.append(late)
        assert read_line(late) == "none of 2 GPUs has 0.25 left; fewer workers, or smaller shares, fit"
        holders[0].kill()
        holders[0].wait(SECONDS)
        for _ in range(2):
            holders.append(start("0.25"))
            assert read_line(holders[-1]).startswith("GPU-")
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def test_a_process_that_takes_several_parts_keeps_each(tmp_path: Path) -> None:
    first = _holder(tmp_path, "0.6 0.6 0.6 0.4")
    try:
        assert first.stdout is not None
        output = [first.stdout.readline().split()[0] for _ in range(4)]
        assert output == ["GPU-0", "GPU-1", "none", "GPU-0"]
        assert _holder(tmp_path, "0.4").communicate(timeout=SECONDS)[0] == "GPU-1\n"
    finally:
        first.communicate(timeout=SECONDS)


@pytest.mark.parametrize("requested", [0, -1, 1.5, 0.0001])
def test_a_part_that_cannot_be_is_refused(tmp_path: Path, requested: float) -> None:
    with pytest.raises(BadShare, match=r"it must be 0\.01 to 1 of a GPU"):
        lock_part(DEVICES, requested, str(tmp_path))


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    for mode in (0o770, 0o707):
        where = tmp_path / f"{mode}"
        where.mkdir()
        where.chmod(mode)
        with pytest.raises(BadShare, match="only this user can write to"):
            lock_part(DEVICES, 0.5, str(where))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadShare, match="only this user can write to"):
        lock_part(DEVICES, 0.5, str(tmp_path / "link"))
