"""The interactive terminal: prompt, help, completion, history, Ctrl-C, Ctrl-D; and none of it piped."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from processes import PYMPSD, SECONDS, DaemonProcess, wait_until

from pympsd.commands.registry import REGISTRY


@define
class Terminal:
    """A user interface at a terminal, and the keyboard."""

    process: subprocess.Popen[bytes]
    screen: int
    unseen: bytes = b""

    def until(self, text: str) -> str:
        """Read the screen until a text is there; return all up to and with it."""
        give_up = time.monotonic() + SECONDS
        while text.encode() not in self.unseen:
            left = give_up - time.monotonic()
            assert select.select([self.screen], [], [], max(0.0, left))[0], (text, self.unseen)
            try:
                more = os.read(self.screen, 4096)
            except OSError:  # the other side is closed
                more = b""
            assert more, (text, self.unseen)
            self.unseen += more
        shown, _, self.unseen = self.unseen.partition(text.encode())
        return (shown + text.encode()).decode().replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        """Send key presses."""
        os.write(self.screen, keys.encode())

    def enter(self, line: str) -> str:
        """Type a line; return what is shown between its echo and the next prompt."""
        self.type(line + "\r")
        self.until("\n")
        return self.until("> ").removesuffix("> ")


@pytest.fixture
def terminal(daemon: DaemonProcess) -> Iterator[Terminal]:
    """A UI at a terminal that has shown its first prompt."""
    screen, own = pty.openpty()
    environment = {**daemon.environment, "TERM": "vt100", "LANG": "C.UTF-8", "INPUTRC": "/dev/null"}
    process = subprocess.Popen(
        [PYMPSD],
        env=environment,
        stdin=own,
        stdout=own,
        stderr=own,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(own)
    shown = Terminal(process, screen)
    assert shown.until("> ").endswith("> ")
    yield shown
    if process.poll() is None:
        process.kill()
    process.wait(SECONDS)
    os.close(screen)


def _take_terminal() -> None:
    # The terminal of its session, so that Ctrl-C is its signal.
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_commands_are_answered(terminal: Terminal) -> None:
    assert terminal.enter("get_default_active_thread_percentage") == "100.0\n"
    assert terminal.enter("") == "", "an empty line is nothing here"
    assert "Unknown command" in terminal.enter("frobnicate")


def test_help(terminal: Terminal) -> None:
    for asked in ("help", "?"):
        shown = terminal.enter(asked)
        assert all(name in shown for name in REGISTRY)
    for name in REGISTRY:
        shown = terminal.enter(f"help {name}")
        assert name in shown
    one = terminal.enter("? get_server_list")
    assert "PIDs of all server instances" in " ".join(one.split())
    assert terminal.enter("help nonsense") != ""
    assert terminal.enter("get_server_list") == ""


def test_help_is_not_sent_to_the_daemon(terminal: Terminal, daemon: DaemonProcess) -> None:
    terminal.enter("help")
    terminal.enter("get_server_list")
    said = [line for line in daemon.log() if line.startswith("Cmd:")]
    assert said == ["Cmd:get_server_list"]


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
    daemon.say("start_server -uid 0")
    wait_until(lambda: bool(daemon.servers()), "a server")
    (server,) = daemon.servers()
    wait_until(lambda: daemon.say(f"get_server_status {server}") == "ACTIVE\n", "its start")
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
