"""The command line that talks to a daemon imports almost nothing, because health probes run it in loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pympsd

MAIN = Path(pympsd.__file__).with_name("__main__.py")
NOT_FOUND = (
    "Cannot find MPS control daemon process\n/nonexistent/pympsd-test/control: No such file or directory; check "
    "CUDA_MPS_PIPE_DIRECTORY, or start the daemon with -d"
)
SLOW = "trio attrs attr structlog argparse re msgspec enum typing socket dataclasses pathlib subprocess numpy"


def _list_imported(*arguments: str) -> tuple[int, str, set[str]]:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", str(MAIN), *arguments],
        stdin=subprocess.DEVNULL,
        env={"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/pympsd-test"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    timed = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    lines = "\n".join(line for line in ran.stderr.splitlines() if not line.startswith("import time:"))
    return ran.returncode, lines, {line.rpartition("|")[2].strip() for line in timed}


def test_a_command_without_a_daemon_reports_it_and_imports_almost_nothing() -> None:
    status, output, imported = _list_imported()
    assert (status, output) == (1, NOT_FOUND)
    assert "pympsd.cli.control_client" in imported
    assert imported & set(SLOW.split()) == set()


def test_a_command_in_the_arguments_takes_the_same_path() -> None:
    status, output, imported = _list_imported("get_server_list")
    assert (status, output) == (1, NOT_FOUND)
    assert imported & set(SLOW.split()) == set()


def test_the_packages_modules_on_the_path_are_few() -> None:
    _, _, imported = _list_imported()
    assert {name for name in imported if name.startswith("pympsd")} <= {
        "pympsd",
        "pympsd.cli",
        "pympsd.errors",
        "pympsd.cli.command_line",
        "pympsd.cli.options",
        "pympsd.cli.control_client",
        "pympsd.cli.daemon_connection",
        "pympsd.vocabulary",
        "pympsd.vocabulary.files",
        "pympsd.wire",
        "pympsd.wire.frames",
    }


def test_printing_the_version_imports_almost_nothing() -> None:
    status, _, imported = _list_imported("-v")
    assert status == 0
    assert imported & set(SLOW.split()) == set()
