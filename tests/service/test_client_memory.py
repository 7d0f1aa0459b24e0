"""The child process that asks NVML for the memory of the driver's clients: its answers, its silence and its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from processes import POLL_SECONDS
from time_limit import with_limit

from pympsd.service.processes import client_memory
from pympsd.service.processes.client_memory import ANSWER_SECONDS, END_SECONDS, ClientMemory

ANSWERS = """
import sys
for _ in sys.stdin:
    print('{"GPU-1": {"4711": 1048576}}', flush=True)
"""
ENDS = """
input()
print('{"GPU-1": {"4711": 1048576}}', flush=True)
"""
SILENT = "import sys; sys.stdin.read()"


@define
class Log:
    """Collects the reasons of warnings."""

    reasons: list[str] = field(factory=list)

    def warning(self, event: str, **fields: Any) -> None:
        assert event == "client_memory_unknown"
        self.reasons.append(fields["reason"])


def memory_by(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> tuple[ClientMemory, Log]:
    """Return the memory as a program in place of the child reports it, and its log."""
    script = folder / "child.py"
    script.write_text(program)
    monkeypatch.setattr(client_memory, "_script", lambda: str(script))
    log = Log()
    return ClientMemory(log, nursery), log  # type: ignore[arg-type]


@with_limit
async def test_the_child_reports_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    memory, log = memory_by(ANSWERS, tmp_path, monkeypatch, nursery)
    monkeypatch.setattr(client_memory, "ANSWER_SECONDS", 30.0)
    assert await memory.current() == {"GPU-1": {4711: 1048576}}
    assert not log.reasons
    await memory.close()


@with_limit
async def test_a_silent_child_is_killed_and_no_other_one_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    memory, log = memory_by(SILENT, tmp_path, monkeypatch, nursery)
    assert await memory.current() == {}
    await trio.sleep(client_memory.FRESH_SECONDS)
    assert await memory.current() == {}
    assert log.reasons == [f"no answer in {ANSWER_SECONDS} s"]


@with_limit
async def test_a_child_that_outlives_its_kill_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    memory, log = memory_by(SILENT, tmp_path, monkeypatch, nursery)
    started: list[trio.Process] = []
    wait, open_process = trio.Process.wait, client_memory.open_process

    async def open_noted(*arguments: Any, **options: Any) -> trio.Process:
        started.append(await open_process(*arguments, **options))
        return started[-1]

    async def hang(process: trio.Process) -> int:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(client_memory, "open_process", open_noted)
    monkeypatch.setattr(trio.Process, "wait", hang)
    with trio.fail_after(10 * (ANSWER_SECONDS + END_SECONDS)):
        assert await memory.current() == {}
        assert await memory.current() == {}
    assert log.reasons == [f"no answer in {ANSWER_SECONDS} s"]
    for process in started:
        await wait(process)


@with_limit
async def test_a_child_that_ends_leaves_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory, log = memory_by(ENDS, tmp_path, monkeypatch, nursery)
    monkeypatch.setattr(client_memory, "ANSWER_SECONDS", 30.0)
    assert await memory.current() == {"GPU-1": {4711: 1048576}}
    while set(os.listdir("/proc/self/fd")) != before:
        await trio.sleep(POLL_SECONDS)
    assert not log.reasons
