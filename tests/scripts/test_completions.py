"""The completions of shells: complete, and what each shell that is installed makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from processes import SECONDS

from pympsd.commands.grammar.registry import COMMANDS, verbs_of
from pympsd.commands.manual import OPTIONS
from pympsd.smi.options import PLAIN, SHORT, VALUED

FILES = Path(__file__).parents[2] / "docs/completions"
FAKE = r"pympsd() { case $1 in get_server_list) echo 4711 ;; *) printf 'alice,1\nbob,2\n' ;; esac; }"
"""Stands for the daemon's answers."""
CASES = [
    ("pympsd get_server_l", ["get_server_list"]),
    ("pympsd --inst", ["--install-extras"]),
    ("pympsd get_client_list ", ["--json", "4711"]),
    ("pympsd ps -p ", ["4711"]),
    ("pympsd set_default_client_priority ", ["0", "1"]),
    ("pympsd --users ", ["in-turn", "together"]),
    ("pympsd -d --log-dialect j", ["json"]),
    ("pympsd server ", ["create", "delete", "get", "list", "set"]),
    ("pympsd -p 3 server s", ["set"]),
    ("pympsd sm-partition create x --", ["--chunks", "--device", "--include-remainder", "--server"]),
    ("pympsd server set --contain=", ["partition", "server"]),
    ("pympsd namespace set x --server=b", ["bob"]),
    ("pympsd device list --format=js", ["json"]),
    ("pympsd top --sort m", ["memory"]),
    ("pympsd plot --s", ["--since"]),
    ("nvidia-cuda-mps-control quit -", ["-t"]),
    ("pympsd-smi -c P", ["PROHIBITED"]),
    ("pympsd-smi --query-gpu=mig.mode.c", ["mig.mode.current"]),
    ("pympsd-smi memory-limits --s", ["--set", "--soft-limit"]),
    ("pympsd-smi dmon -", ["-c", "-d", "-f", "-h", "-i", "-o", "-s"]),
    ("pympsd-run -", ["--help", "-m"]),
]


MODULES = {command.module for command in COMMANDS.values() if command.verb}


def shell(command: list[str]) -> list[str]:
    """Return the words that a shell prints, in order, without the option of a value and the ``=`` of an option."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.stderr == ""
    words = (word.rstrip("=") for word in done.stdout.split())
    return sorted({word.rpartition("=")[2] for word in words})


def bash(line: str) -> list[str]:
    """Complete a line as readline has it, where ``=`` is a word of its own."""
    words = line.replace("=", " = ").split()
    words += [""] if line.endswith(" ") else []
    function = f"_{words[0].replace('-', '_')}" if words[0] != "nvidia-cuda-mps-control" else "_pympsd"
    script = (
        f'{FAKE}; . {FILES}/bash/{words[0]}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        f'{function} "$1" "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    return shell(["bash", "-c", script, "bash", *words])


@pytest.mark.parametrize(("line", "completed"), CASES)
def test_bash_completes(line: str, completed: list[str]) -> None:
    assert bash(line) == completed


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_fish_completes(line: str, completed: list[str]) -> None:
    script = (
        "function pympsd; test $argv[1] = get_server_list; and echo 4711; or printf 'alice,1\\nbob,2\\n'; end; "
        f"set -g fish_complete_path; source {FILES}/fish/{line.split()[0]}.fish; "
        "complete -C $argv[1] | string replace -r '\\t.*' ''"
    )
    # fish offers options when a dash was typed.
    offered = [word for word in completed if not word.startswith("-") or " -" in line]
    assert shell(["fish", "-N", "-c", script, line]) == offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_zsh_completes(line: str, completed: list[str]) -> None:
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    # zsh itself leaves out what does not begin like the last word.
    beginning = words[-1].rpartition("=")[2]
    script = (
        f'{FAKE}; compset() {{ }}; _files() {{ }}; local -a words=("$@"); integer CURRENT=$#; '
        'compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -rl -- "$@" }; '
        f". {FILES}/zsh/_pympsd"
    )
    offered = shell(["zsh", "-fc", script, "zsh", *words])
    assert [word for word in offered if word.startswith(beginning)] == completed


def test_every_command_and_option_is_completed() -> None:
    first = set(bash("pympsd "))
    assert first >= {*MODULES, *(command.module for command in COMMANDS.values()), "top", "plot"}
    assert first >= {word for usage, _ in OPTIONS for word in usage.replace(",", "").split() if word.startswith("-")}
    for module in MODULES:
        assert set(bash(f"pympsd {module} ")) == set(verbs_of(module, 3))
    assert set(bash("pympsd-smi -")) == {*SHORT, *PLAIN, *VALUED}


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.verb])
def test_every_option_of_protocol_3_is_completed(name: str) -> None:
    command = COMMANDS[name]
    offered = bash(f"pympsd {name} -") or []
    json = ["--json"] if command.usage.endswith(" [--json]") else []
    assert [word for word in offered if word] == sorted([*command.syntax.option_words, *json])
