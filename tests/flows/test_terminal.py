"""The interactive terminal: prompt, help, completion, history, Ctrl-C, Ctrl-D; and none of it piped."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from at_terminal import Terminal, at_terminal
from processes import PYMPSD, SECONDS, DaemonProcess, wait_until

from pympsd.commands.grammar.registry import COMMANDS

NAMES = [command.name for command in COMMANDS.values() if 2 in command.protocols and not command.verb]


@pytest.fixture
def terminal(daemon: DaemonProcess) -> Iterator[Terminal]:
    """A UI at a terminal that has shown its first prompt."""
    with at_terminal([PYMPSD], daemon.environment) as terminal:
        assert terminal.until("> ").endswith("> ")
        yield terminal


def test_commands_are_answered(terminal: Terminal) -> None:
    assert terminal.enter("get_default_active_thread_percentage") == "100.0\n"
    assert terminal.enter("") == "", "an empty line is nothing here"
    assert "Unknown command" in terminal.enter("frobnicate")


def test_help_describes_all_commands(terminal: Terminal) -> None:
    for word in ("help", "?"):
        shown = terminal.enter(word)
        assert all(name in shown for name in NAMES)
    for name in NAMES:
        shown = terminal.enter(f"help {name}")
        assert name in shown
    line = terminal.enter("? get_server_list")
    assert "PIDs of all servers" in " ".join(line.split())
    assert terminal.enter("help nonsense") != ""
    assert "trace start FILE\ntrace stop\n" in terminal.enter("help")
    assert terminal.enter("get_server_list") == ""


def test_help_is_not_sent_to_the_daemon(terminal: Terminal, daemon: DaemonProcess) -> None:
    terminal.enter("help")
    terminal.enter("get_server_list")
    lines = [line for line in daemon.log() if line.startswith("Cmd:")]
    assert lines == ["Cmd:get_server_list"]


def test_a_tab_completes_the_name_of_a_command(terminal: Terminal) -> None:
    terminal.type("get_default_ac\t")
    assert "get_default_active_thread_percentage " in terminal.until("percentage ")
    terminal.type("\r")
    assert terminal.until("> ") == "\n100.0\n> "
    terminal.type("help get_server_l\t\r")
    assert "PIDs of all server" in " ".join(terminal.until("> ").split())


def test_a_misspelt_command_is_answered_with_the_nearest(terminal: Terminal, daemon: DaemonProcess) -> None:
    assert "Did you mean get_server_list?\n" in terminal.enter("get_sever_list")
    assert "Did you mean" not in terminal.enter("frobnicate")
    assert terminal.enter("exit") == "Ctrl-D leaves this prompt; quit ends the daemon and its servers\n"
    assert daemon.servers() == []


def test_a_tab_completes_the_pid_of_a_server(terminal: Terminal, daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    wait_until(lambda: bool(daemon.servers()), "a server")
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "its start")
    assert "ACTIVE" in terminal.enter("get_server_status \t")


def test_history_and_editing(terminal: Terminal) -> None:
    terminal.enter("get_default_client_priority")
    terminal.enter("set_default_active_thread_percentage 40")
    # Up twice: the first command again.
    terminal.type("\x1b[A\x1b[A\r")
    terminal.until("\n")
    assert terminal.until("> ") == "0\n> "
    # Ctrl-A, then what was forgotten in front.
    terminal.type("default_active_thread_percentage\x01get_\r")
    terminal.until("\n")
    assert terminal.until("> ") == "40.0\n> "


def test_ctrl_c_gives_the_line_up(terminal: Terminal) -> None:
    terminal.type("set_default_active_thread_percentage 7")
    terminal.until("percentage 7")
    # A signal just before Python waits for the next key would be seen with that key only.
    state = Path(f"/proc/{terminal.process.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S", "its wait for a key")
    terminal.type("\x03")
    terminal.until("> ")
    assert terminal.process.poll() is None
    assert terminal.enter("get_default_active_thread_percentage") == "100.0\n"


def test_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.enter("get_server_list")
    terminal.type("\x04")
    assert terminal.process.wait(SECONDS) == 0


def test_quit_at_the_terminal_ends_it_too(terminal: Terminal) -> None:
    terminal.type("quit\r")
    assert terminal.process.wait(SECONDS) == 0


def test_piped_there_is_no_prompt_and_no_help(daemon: DaemonProcess) -> None:
    done = daemon.run([], "help\n?\nget_default_client_priority\n")
    assert done.stdout == 'Unknown command "help"\nUnknown command "?"\n0\n'
    assert "> " not in done.stdout + done.stderr


def test_with_only_the_output_at_a_terminal_there_is_no_prompt(daemon: DaemonProcess) -> None:
    screen, own = pty.openpty()
    try:
        done = subprocess.run(
            [PYMPSD], env=daemon.environment, input=b"get_default_client_priority", stdout=own, timeout=SECONDS
        )
        assert done.returncode == 0
        assert os.read(screen, 100) == b"0\r\n"
    finally:
        os.close(screen)
        os.close(own)


def test_protocol_3_has_its_own_help_and_completion(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="H200")
    assert daemon.start("-d", "-p", "3").returncode == 0
    with at_terminal([PYMPSD], daemon.environment) as terminal:
        terminal.until("> ")
        assert "namespace       create, delete, get, list, set" in terminal.enter("help")
        for typed, output in (
            ("help server delete", "server delete <name> [--force]"),
            ("? server", "server set <name>"),
            ("serv\tcr\tone --al\t0", "server create one --allowed-devices=0"),
            ("help namesp\tli\t", "namespace list [<name>]"),
        ):
            terminal.type(f"{typed}\r")
            terminal.until(output)
            terminal.until("\r\n> ")
    assert daemon.run(["server", "get", "one", "status"]).stdout == "Ready\n"
