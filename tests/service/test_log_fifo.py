"""The log FIFO: any user may write to it, so its lines are sanitised, marked Other and rate-limited."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest
import trio
from time_limit import with_limit

from pympsd.service.log_fifo import LINES_PER_SECOND, read_fifo
from pympsd.wire.driver.log_records import DriverLogRecord, RecordWriter
from tests.service.conftest import RunningDaemon

SERVER = 430
"""The PID of a server of the driver's own."""
RECORDED = Path(__file__).parents[1] / "data" / "driver-logs" / "log-fifo.hex"
"""Each line was read from the FIFO of such a server immediately."""


@pytest.fixture
def servers() -> set[int]:
    """PIDs of running servers of the driver's own."""
    return {SERVER}


@pytest.fixture
async def fifo(tmp_path: Path, daemon: RunningDaemon, servers: set[int]) -> AsyncIterator[int]:
    """The writing end of the FIFO that the daemon reads."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    with trio.CancelScope() as scope:
        daemon.dispatcher.nursery.start_soon(
            _run_scoped, scope, lambda: read_fifo(daemon.dispatcher.journal, reader, servers.__contains__)
        )
        yield reader
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    os.close(reader)


async def _run_scoped(scope: trio.CancelScope, run: Callable[[], object]) -> None:
    del scope
    await run()  # type: ignore[misc]  # the FIFO's reader


async def _lines(daemon: RunningDaemon, count: int) -> list[str]:
    log = daemon.log.with_name("server.log")
    while len(lines := log.read_text().splitlines()) < count:
        await trio.lowlevel.checkpoint()
    return [line.partition("] ")[2] for line in lines]


@with_limit
async def test_lines_are_sanitised_and_marked_other(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"a line\nan \x1b[31mescape\xff\n")
    assert await _lines(daemon, 2) == ["a line", "an  [31mescape\ufffd"]
    assert " Other     0] " in daemon.log.with_name("server.log").read_text()


@with_limit
async def test_a_line_in_pieces_is_one_line(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"first ")
    await trio.testing.wait_all_tasks_blocked(0.01)
    os.write(fifo, b"half\n")
    assert await _lines(daemon, 1) == ["first half"]


@pytest.mark.long
@with_limit
async def test_a_flood_is_cut_and_counted(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"x\n" * (LINES_PER_SECOND + 50))
    lines = await _lines(daemon, LINES_PER_SECOND + 1)
    assert lines[-1] == "Dropped 50 log lines: too many in a short time"
    assert await daemon.still_answers()


@with_limit
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
        nursery.start_soon(read_fifo, daemon.dispatcher.journal, reader)
        await looked.wait()
        await trio.lowlevel.checkpoint()
        os.write(reader, b"still read\n")
        assert await _lines(daemon, 1) == ["still read"]
        nursery.cancel_scope.cancel()
    os.close(reader)


# --- records of the driver's own servers


def _record(
    text: bytes, pid: int = SERVER, origin: RecordWriter = RecordWriter.SERVER, at: datetime | None = None
) -> bytes:
    return DriverLogRecord(origin, pid, at or datetime.now(), text).encode()


def _stamps(daemon: RunningDaemon) -> list[str]:
    """Return the time, author and PID of each line."""
    text = daemon.log.with_name("server.log").read_text()
    return [line[1:].partition("] ")[0] for line in text.splitlines()]


@with_limit
async def test_what_another_process_writes_as_a_server_did(daemon: RunningDaemon, fifo: int, tmp_path: Path) -> None:
    del fifo  # the process opens it by its path
    writer = """
import sys
fifo = open(sys.argv[1], "wb", buffering=0)
for line in open(sys.argv[2]):
    fifo.write(bytes.fromhex(line))
fifo.write(b"end\\n")
"""
    await trio.run_process([sys.executable, "-c", writer, str(tmp_path / "log"), str(RECORDED)])
    data = b"".join(map(bytes.fromhex, RECORDED.read_text().splitlines()))
    while (lines := await _lines(daemon, 1))[-1] != "end":
        await trio.lowlevel.checkpoint()
    assert lines[:5] == [
        "Startup",
        "Connecting to control daemon on socket: /tmp/vm/control",
        "Initializing server process",
        "Volta MPS: Creating server context on device 0",
        "Created anonymous shared memory region mps.shm.0.430",
    ]
    assert 0 < len(lines) - 1 < data.count(b"\xe0\xcd\xab")  # some have no documented form
    assert [stamp[24:] for stamp in _stamps(daemon)[:5]] == ["Other   430"] * 4 + ["Server   430"]
    assert {stamp[24:] for stamp in _stamps(daemon)[:-1]} == {"Other   430", "Server   430"}


@with_limit
async def test_a_record_of_no_server_is_others(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, _record(b"forged\n[line] \x1b[31m", pid=431) + b"a line\n" + _record(b"Exiting"))
    assert await _lines(daemon, 3) == ["forged [line]  [31m", "a line", "Exiting"]
    assert [stamp[24:] for stamp in _stamps(daemon)] == ["Other     0", "Other     0", "Server   430"]


@with_limit
async def test_a_servers_text_is_sanitised(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, _record(b"a\n[line] \x1b[31m\xff"))
    assert await _lines(daemon, 1) == ["a [line]  [31m\ufffd"]


@with_limit
async def test_a_server_that_has_ended_has_its_last_lines(
    daemon: RunningDaemon, fifo: int, servers: set[int]
) -> None:
    os.write(fifo, _record(b"Startup", origin=RecordWriter.OTHER))
    await _lines(daemon, 1)
    servers.clear()
    os.write(fifo, _record(b"Exiting"))
    await _lines(daemon, 2)
    assert [stamp[24:] for stamp in _stamps(daemon)] == ["Other   430", "Server   430"]


@with_limit
async def test_a_record_has_its_own_time_if_that_is_near(daemon: RunningDaemon, fifo: int) -> None:
    before = time.time()
    near = datetime.fromtimestamp(int(before) - 30)
    os.write(fifo, _record(b"Exiting", at=near) + _record(b"Exiting", at=datetime(1999, 12, 31, 23, 59)))
    await _lines(daemon, 2)
    times = [datetime.fromisoformat(stamp[:23]) for stamp in _stamps(daemon)]
    assert times[0] == near
    assert int(before) <= times[1].timestamp() <= time.time()


@pytest.mark.long
@with_limit
async def test_servers_do_not_share_the_limit_of_others(daemon: RunningDaemon, fifo: int) -> None:
    os.write(fifo, b"x\n" * (LINES_PER_SECOND + 1) + _record(b"Exiting") * (LINES_PER_SECOND + 1))
    lines = await _lines(daemon, 2 * LINES_PER_SECOND + 2)
    assert lines.count("Exiting") == LINES_PER_SECOND + 1
    assert lines.count("Dropped 1 log lines: too many in a short time") == 1


@with_limit
async def test_a_servers_flood_is_cut_and_counted(
    daemon: RunningDaemon, fifo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pympsd.service.log_fifo.RECORDS_PER_SECOND", 10)
    os.write(fifo, _record(b"Exiting") * 15)
    assert await _lines(daemon, 11) == ["Exiting"] * 10 + ["Dropped 5 log lines: too many in a short time"]
    assert _stamps(daemon)[-1].endswith(" Server   430")
    os.write(fifo, _record(b"Exiting"))
    assert (await _lines(daemon, 12))[-1] == "Exiting"
