"""Running one test in a child process, which sends its reports back."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

import pytest
from _pytest.runner import CallInfo, SetupState, runtestprotocol

SECONDS = 90.0
"""The absolute limit of one test."""


def reports_from_child(
    item: pytest.Item, nextitem: pytest.Item | None, prepare: Callable[[], None]
) -> list[pytest.TestReport]:
    """Run a test in a fork of this process, prepared; its end without reports is a failure of the test.

    What tests before it have set up here is torn down as far as the next test does not share it: the runner does so
    after a test that it runs itself, and meets what it expects.
    """
    return [*_run_forked(item, prepare), *_torn_down(item, nextitem)]


def _torn_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    call = CallInfo.from_call(lambda: _setup(item).teardown_exact(nextitem), "teardown")
    if call.excinfo is None:
        return []
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    assert isinstance(report, pytest.TestReport)
    return [report]


def _setup(item: pytest.Item) -> SetupState:
    return item.session._setupstate


def _protocol(item: pytest.Item) -> list[pytest.TestReport]:
    """Set up, call and tear down what is not set up yet: the rest is the parent's to tear down."""
    there = next(reversed(_setup(item).stack), None)
    return runtestprotocol(item, log=False, nextitem=there)  # type: ignore[arg-type]  # any node will do


def _run_forked(item: pytest.Item, prepare: Callable[[], None]) -> list[pytest.TestReport]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The test runner's threads do not matter in the child: it runs one test and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            prepare()
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                json.dump([_pack(item, report) for report in _protocol(item)], pipe)
            status = 0
        finally:
            os._exit(status)  # whatever runs on the device ends with the process
    os.close(writer)
    text = _read(reader)
    if text is None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    try:
        return [_unpack(item, data) for data in json.loads(text or "")]
    except ValueError:
        ending = "ran too long" if text is None else f"ended with wait status {status:#x}"
        return [_report_lost(item, f"the test's process {ending}")]


def _read(reader: int) -> str | None:
    deadline, parts = time.monotonic() + SECONDS, []
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(1 << 16)
            if not part:
                return b"".join(parts).decode()
            parts.append(part)
    return None


def _pack(item: pytest.Item, report: pytest.TestReport) -> object:
    return item.config.hook.pytest_report_to_serializable(config=item.config, report=report)


def _unpack(item: pytest.Item, data: object) -> pytest.TestReport:
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    assert isinstance(report, pytest.TestReport)
    return report


def _report_lost(item: pytest.Item, reason: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
