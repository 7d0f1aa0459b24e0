"""The child process that asks NVML for the memory of the driver's clients: its answers, its silence and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from time_limit import bounded

from pympsd.service.processes import client_memory
from pympsd.service.processes.client_memory import ANSWER_SECONDS, END_SECONDS, ClientMemory

ANSWERS = """
import sys
for _ in sys.stdin:
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


def memory_by(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ClientMemory, Log]:
    """Return the memory as a program in place of the child reports it, and its log."""
    script = folder / "child.py"
    script.write_text(program)
    monkeypatch.setattr(client_memory, "_script", lambda: str(script))
    log = Log()
    return ClientMemory(log), log  # type: ignore[arg-type]


@bounded
async def test_the_child_is_asked_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, log = memory_by(ANSWERS, tmp_path, monkeypatch)
    monkeypatch.setattr(client_memory, "ANSWER_SECONDS", 30.0)
    assert await memory.current() == {"GPU-1": {4711: 1048576}}
    assert not log.reasons
    await memory.close()


@bounded
async def test_a_silent_child_is_killed_and_no_other_one_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, log = memory_by(SILENT, tmp_path, monkeypatch)
    assert await memory.current() == {}
    await trio.sleep(client_memory.FRESH_SECONDS)
    assert await memory.current() == {}
    assert log.reasons == [f"no answer in {ANSWER_SECONDS} s"]


@bounded
async def test_a_child_that_outlives_its_kill_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, log = memory_by(SILENT, tmp_path, monkeypatch)
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
