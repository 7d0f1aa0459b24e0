"""The scripts do what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_generated_docs_are_those_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate-docs", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("argument", "passed_on", "last"),
    [
        ("", "-q {parallel} -m not long", "left out: the long tests "),
        ("--all -q", "{parallel} -q", ""),
        ("tests/flows -x", "tests/flows -x", ""),
    ],
)
def test_the_tests_run_in_parallel_without_the_long_ones(
    tmp_path: Path, argument: str, passed_on: str, last: str
) -> None:
    pytest_stub = tmp_path / "pytest"
    pytest_stub.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\nexit 3\n')
    pytest_stub.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts")
    environment = f"root={tmp_path}; bin={tmp_path}; install_pympsd() {{ :; }}\n"
    (tmp_path / "scripts" / "environment").write_text(environment)
    done = subprocess.run([tmp_path / "scripts" / "test", *argument.split()], capture_output=True, text=True)
    parallel = f"-n {2 * len(os.sched_getaffinity(0))} --dist worksteal"
    first, _, rest = done.stdout.partition("\n")
    assert (done.returncode, first) == (3, passed_on.format(parallel=parallel))
    assert (rest.startswith(last), bool(rest)) == (True, bool(last))


def test_an_installation_is_built_again_only_after_a_change(tmp_path: Path) -> None:
    for folder in ("scripts", "pympsd", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "environment", tmp_path / "scripts")
    python_stub, installed = tmp_path / ".venv/bin/python3", ".venv/lib/python3.11/site-packages/pympsd"
    python_stub.write_text(
        f'#!/bin/sh\nfor last; do :; done; echo "$last"; mkdir -p {installed}\n: >{installed}/__main__.py\n'
    )
    python_stub.chmod(0o755)
    steps = (
        'install_pympsd ""',
        'install_pympsd "[dev,test]"',
        'install_pympsd "[test]"',
        'echo "changed = 1" >pympsd/module.py',
        'install_pympsd "[test]"',
    )
    command = ["sh", "-c", "\n".join((". scripts/environment", *steps)), "scripts/any"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [f"{tmp_path}", "pympsd[dev,test]", f"{tmp_path}[test]"], done.stderr
