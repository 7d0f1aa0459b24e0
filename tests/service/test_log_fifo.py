"""The log fifo: anybody writes to it, so its lines are cleaned, marked Other and limited in number."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from pympsd.service.files.log_fifo import LINES_PER_SECOND, read_fifo
from tests.service.conftest import House, bounded


@pytest.fixture
async def fifo(tmp_path: Path, house: House) -> AsyncIterator[int]:
    """The writing end of the fifo that the daemon reads."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    with trio.CancelScope() as scope:
        house.hub.nursery.start_soon(_scoped, scope, lambda: read_fifo(house.hub, reader))
        yield reader
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    os.close(reader)


async def _scoped(scope: trio.CancelScope, run: Callable[[], object]) -> None:
    del scope
    await run()  # type: ignore[misc]  # the fifo's reader


async def _lines(house: House, count: int) -> list[str]:
    log = house.log.with_name("server.log")
    while len(lines := log.read_text().splitlines()) < count:
        await trio.lowlevel.checkpoint()
    return [line.partition("] ")[2] for line in lines]


@bounded
async def test_lines_are_cleaned_and_marked_other(house: House, fifo: int) -> None:
    os.write(fifo, b"a line\nan \x1b[31mescape\xff\n")
    assert await _lines(house, 2) == ["a line", "an  [31mescape\ufffd"]
    assert " Other     0] " in house.log.with_name("server.log").read_text()


@bounded
async def test_a_line_in_pieces_is_one_line(house: House, fifo: int) -> None:
    os.write(fifo, b"first ")
    await trio.testing.wait_all_tasks_blocked(0.01)
    os.write(fifo, b"half\n")
    assert await _lines(house, 1) == ["first half"]


@bounded
async def test_a_flood_is_cut_and_counted(house: House, fifo: int) -> None:
    os.write(fifo, b"x\n" * (LINES_PER_SECOND + 50))
    lines = await _lines(house, LINES_PER_SECOND + 1)
    assert lines[-1] == "50 log lines were dropped: too many at once"
    assert await house.still_answers()


@bounded
async def test_another_reader_who_was_quicker_does_no_harm(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    looked = trio.Event()

    async def claims_to_be_readable(_: int) -> None:
        await trio.lowlevel.checkpoint()
        looked.set()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", claims_to_be_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_fifo, house.hub, reader)
        await looked.wait()
        await trio.lowlevel.checkpoint()
        os.write(reader, b"still read\n")
        assert await _lines(house, 1) == ["still read"]
        nursery.cancel_scope.cancel()
    os.close(reader)
