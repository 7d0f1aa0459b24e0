"""Records in a file how tests end, immediately: a run that is cut short would otherwise lose it."""

from __future__ import annotations

import os
import time

import pytest
from attrs import define, field

SHOWN = 6000
"""The number of last characters kept of each captured output of a failed test."""


@define(eq=False)
class Record:
    """A pytest plugin. Several processes may append to one file, because each record is one write."""

    _config: pytest.Config
    _fd: int
    _began: float = field(factory=time.monotonic)

    @classmethod
    def of(cls, config: pytest.Config, path: str) -> Record:
        """Return a plugin that appends to a file."""
        return cls(config, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))

    def _say(self, text: str) -> None:
        os.write(self._fd, f"{text}\n".encode(errors="replace"))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record which test runs: the last such record names the one that was cut short."""
        self._say(f"{time.monotonic() - self._began:6.1f} s: began {nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record how a test's call ended, and every failure in full."""
        if report.failed:
            output = [f"----- {title}\n{text[-SHOWN:]}" for title, text in report.sections]
            self._say("\n".join([f"FAILED {report.nodeid} ({report.when})", report.longreprtext, *output, "-----"]))
        elif report.when == "call" or report.skipped:
            self._say(f"{report.outcome} {report.nodeid} {report.duration:.2f} s")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record what could not be collected."""
        if report.failed:
            self._say(f"FAILED to collect {report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Keep the terminal's summary short: it is in the record."""
        self._config.option.tbstyle = "no"

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        os.close(self._fd)
