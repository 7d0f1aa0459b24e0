"""What is refused before a daemon starts, on a machine with a (here: fake) GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from pympsd.cli import daemonize
from pympsd.cli.options import Options
from pympsd.devices.discovery import Probed
from pympsd.devices.machine import describe
from pympsd.vocabulary.variables import CONNECTIONS, WORKER


@pytest.mark.parametrize("backend", ["auto", "cuda"])
@pytest.mark.parametrize(("variable", "value"), [(CONNECTIONS, "64"), (WORKER, "x")])
def test_on_a_gpu_what_no_executor_could_start_with_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    backend: str,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))
    monkeypatch.delenv("PYMPSD_EMULATED_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYMPSD_BACKEND", backend)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(daemonize, "ask_driver", lambda: Probed(describe("H200")))
    monkeypatch.setattr(daemonize, "_open_journal", lambda *_: pytest.fail("the daemon would have started"))
    assert daemonize.start_daemon(Options(["-f"])) == 1
    assert capsys.readouterr().err.startswith(f"{variable} must be ")
    assert not (tmp_path / "pipe").exists(), "a failed start must not end the running daemon"
