"""The log FIFO: any user may write to it, so its lines are sanitised, marked Other and rate-limited."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from time_limit import bounded

from pympsd.service.files.log_fifo import LINES_PER_SECOND, read_fifo
from tests.service.conftest import RunningDaemon


@pytest.fixture
async def fifo(tmp_path: Path, daemon: RunningDaemon) -> AsyncIterator[int]:
    """The writing end of the FIFO that the daemon reads."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    with trio.CancelScope() as scope:
        daemon.dispatcher.nursery.start_soon(_scoped, scope, lambda: read_fifo(daemon.dispatcher, reader))
        yield reader
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    os.close(reader)


async def _scoped(scope: trio.CancelScope, run: Callable[[], object]) -> None:
    del scope
    await run()  # type: ignore[misc]  # the FIFO's reader


async def _lines(daemon: RunningDaemon, count: int) -> list[str]:
    log = daemon.log.with_name("server.log")
    while len(lines := log.read_text().splitlines()) < count:
        await trio.lowlevel.checkpoint()
    return [line.partition("] ")[2] for line in lines]


@bounded
async def test_lines_are_sanitised_and_marked_other(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"a line\nan \x1b[31mescape\xff\n")
    assert await _lines(daemon, 2) == ["a line", "an  [31mescape\ufffd"]
    assert " Other     0] " in daemon.log.with_name("server.log").read_text()


@bounded
async def test_a_line_in_pieces_is_one_line(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"first ")
    await trio.testing.wait_all_tasks_blocked(0.01)
    os.write(fifo, b"half\n")
    assert await _lines(daemon, 1) == ["first half"]


@bounded
async def test_a_flood_is_cut_and_counted(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"x\n" * (LINES_PER_SECOND + 50))
    lines = await _lines(daemon, LINES_PER_SECOND + 1)
    assert lines[-1] == "50 log lines were dropped: too many at once"
    assert await daemon.still_answers()


@bounded
async def test_another_reader_may_take_the_data_first(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    looked = trio.Event()

    async def claims_to_be_readable(_: int) -> None:
        await trio.lowlevel.checkpoint()
        looked.set()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", claims_to_be_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_fifo, daemon.dispatcher, reader)
        await looked.wait()
        await trio.lowlevel.checkpoint()
        os.write(reader, b"still read\n")
        assert await _lines(daemon, 1) == ["still read"]
        nursery.cancel_scope.cancel()
    os.close(reader)
