"""``pympsd`` with commands for NVIDIA's own daemon, and NVIDIA's tool with commands for ours."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver_recordings import read
from fake_mps.programs import DriverClient
from fake_mps.their_daemon import TheirDaemon, their_daemon
from fake_mps.visitor import END_OF_ANSWERS, Visitor, visitor
from processes import DaemonProcess, wait_until

PIPE = "pipe"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


# --- our tool, their daemon


def echo(line: str) -> list[bytes] | None:
    """Print "N lines" of text for "print N", nothing for an empty line, else the line."""
    name, _, count = line.partition(" ")
    if name == "print":
        return [b"line %d of %d" % (number, int(count)) for number in range(int(count))]
    if name == "quit":
        return None
    return [line.encode("utf-8", "surrogateescape")] if line else []


@pytest.fixture
def nvidia_daemon(directory: Path) -> Iterator[TheirDaemon]:
    """NVIDIA's daemon."""
    with their_daemon(directory / PIPE, echo) as daemon:
        yield daemon


@pytest.fixture
def tool(directory: Path) -> DaemonProcess:
    """Our tool; no daemon of ours runs."""
    return DaemonProcess(directory)


def test_a_command_as_arguments(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    done = tool.run(["get_server_status", "447"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "get_server_status 447\n", "")
    assert nvidia_daemon.lines == ["get_server_status 447"]


@pytest.mark.parametrize("text", ["ps\nget_server_list\n", "ps\nget_server_list", "\nps\n\nget_server_list\n"])
def test_lines_of_standard_input(nvidia_daemon: TheirDaemon, tool: DaemonProcess, text: str) -> None:
    done = tool.run([], text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ps\nget_server_list\n", "")
    assert [line for line in nvidia_daemon.lines if line] == ["ps", "get_server_list"]


def test_an_empty_input_sends_no_line(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    assert tool.run([], "").stdout == ""
    assert nvidia_daemon.lines == []


def test_an_answer_of_many_lines_and_of_empty_ones(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    nvidia_daemon.printed = lambda line: [b"", b"\nServer 447", b"", b"x" * 5000] * 50
    assert tool.run([], "ps\n").stdout == ("\n\nServer 447\n\n" + "x" * 5000 + "\n") * 50


def test_hundreds_of_lines(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    lines = [f"get_server_status {number}" for number in range(700)]
    done = tool.run([], "\n".join(lines))
    assert done.stdout.splitlines() == lines == nvidia_daemon.lines
    assert done.returncode == 0


def test_hundreds_of_lines_with_long_answers(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    """The daemon reads no line while it writes, and the tool reads nothing while it sends."""
    nvidia_daemon.printed = lambda line: [b"y" * 1000] * 20
    done = tool.run([], "device_query\n" * 300)
    assert done.stdout.count("\n") == 300 * 20


def test_lines_of_a_kilobyte_each(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    lines = [f"{number} " + "z" * 1000 for number in range(100)]
    assert tool.run([], "\n".join(lines)).stdout.splitlines() == lines


def test_lines_and_answers_that_no_socket_holds(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    nvidia_daemon.timeout = 3
    lines = [f"{number} " + "z" * 30_000 for number in range(32)]
    done = tool.run([], "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines


def test_bytes_that_are_not_text_pass_unchanged(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    done = subprocess.run(
        [tool.command], env=tool.environment, input=b"\xff\xfe caf\xc3\xa9\n", capture_output=True, timeout=30
    )
    assert done.stdout == b"\xff\xfe caf\xc3\xa9\n"


def test_a_daemon_that_ends_before_it_has_answered(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    nvidia_daemon.printed = lambda line: None
    done = tool.run([], "ps\n")
    text = "Cannot communicate with the MPS control daemon: it closed the connection before it answered\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)


def test_quit_ends_the_session_and_the_daemon(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    done = tool.run([], "ps\nquit\n" + "ps\n" * 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ps\n", "")


def test_strict_is_refused_by_name(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    done = tool.run(["--strict"], "ps\n")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == ("--strict: this is NVIDIA's own daemon, which does not report which commands it refuses\n")
    assert nvidia_daemon.sessions == 0


def test_a_daemon_with_another_hello(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    nvidia_daemon.hello = b"OUTBHEL2\0"
    done = tool.run([], "ps\n")
    assert done.returncode == 1
    text = "its protocol is a different one; it may be from an older driver"
    assert done.stderr == f"Cannot communicate with the MPS control daemon: {text}\n"


@pytest.mark.long
def test_a_daemon_that_is_silent(nvidia_daemon: TheirDaemon, tool: DaemonProcess, directory: Path) -> None:
    """Stopped: it accepts, by its backlog, and says nothing. The tool waits 10 s."""
    (directory / "other" / PIPE).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(directory / "other" / PIPE / "control"))
        listener.listen(4)
        began = time.monotonic()
        done = DaemonProcess(directory / "other").run([], "ps\n")
    assert done.returncode == 2
    assert (
        done.stderr
        == "The MPS control daemon does not answer: it accepted the connection, then sent nothing for 10 s\n"
    )
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "packet", [b"\2\0\0\0text", struct.pack("<i", -1), b"\1", struct.pack("<ii", 1, 1), b"\0" * 3]
)
def test_a_daemon_that_sends_what_no_daemon_sends_is_refused(
    nvidia_daemon: TheirDaemon, tool: DaemonProcess, packet: bytes
) -> None:
    nvidia_daemon.raw = [bytes(4) + b"right", packet]
    done = tool.run([], "ps\n")
    assert done.stdout == "right\n"
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_causes_no_traceback(nvidia_daemon: TheirDaemon, tool: DaemonProcess) -> None:
    nvidia_daemon.printed = lambda line: [b"x" * 1000] * 500
    with subprocess.Popen(
        [tool.command, "ps"], env=tool.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        errors = running.stderr.read().decode()
        assert running.wait(30) != 0
    assert "Traceback" not in errors


@pytest.mark.long(but=["two-devices"])
@pytest.mark.parametrize("name", ["commands-and-users", "limits-and-ends", "two-devices"])
def test_the_recorded_sessions(nvidia_daemon: TheirDaemon, tool: DaemonProcess, name: str) -> None:
    """Line by line what NVIDIA's own tool printed."""
    sessions = [session for session in read(name).tools if len(session.lines) == 1]
    assert any(session.printed for session in sessions)
    for session in sessions:
        answer = session.printed
        nvidia_daemon.printed = lambda line, answer=answer: answer  # type: ignore[misc]
        done = tool.run([], session.lines[0].decode())
        assert done.stdout.encode() == b"".join(line + b"\n" for line in answer)


# --- which daemon there is


def found(tool: DaemonProcess) -> str:
    """Return the last line of --help."""
    done = tool.run(["--help"])
    assert done.returncode == 0
    return done.stdout.splitlines()[-1]


def test_help_names_nvidias_daemon(nvidia_daemon: TheirDaemon, tool: DaemonProcess, directory: Path) -> None:
    assert found(tool) == f"daemon at {directory}/pipe/control: NVIDIA's own daemon"


def test_help_names_no_daemon(tool: DaemonProcess, directory: Path) -> None:
    assert found(tool) == f"daemon at {directory}/pipe/control: no daemon (No such file or directory)"


def test_help_names_our_daemon(make_daemon: Callable[..., DaemonProcess], directory: Path) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    assert found(daemon) == f"daemon at {directory}/pipe/control: pympsd, with servers of its own"


@as_root
def test_help_names_our_daemon_that_leads_their_server(ours: DaemonProcess, directory: Path) -> None:
    assert found(ours) == f"daemon at {directory}/pipe/control: pympsd, which manages the driver's server"


@as_root
def test_our_tool_is_strict_with_our_daemon_that_leads_their_server(ours: DaemonProcess) -> None:
    done = ours.run(["--strict"], "foo\nget_default_active_thread_percentage\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "100.0"


# --- their tool, our daemon


@pytest.fixture
def ours(start_driver_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """Our daemon, which manages the fake server."""
    return start_driver_daemon()


@pytest.fixture(params=["control", "control_privileged"])
def their_tool(ours: DaemonProcess, directory: Path, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """NVIDIA's tool, at the socket that it takes as root, and at the other."""
    with visitor(directory / PIPE / request.param) as here:
        here.as_tool()
        yield here


@as_root
def test_one_line_is_answered(ours: DaemonProcess, their_tool: Visitor) -> None:
    their_tool.give(b"get_default_active_thread_percentage")
    assert their_tool.answers() == [b"100.0"]
    assert their_tool.is_closed()
    assert ours.log()[-1] == "UI closed"


@as_root
def test_an_answer_of_many_lines_is_what_our_tool_prints(
    ours: DaemonProcess, their_tool: Visitor, directory: Path
) -> None:
    with DriverClient.start(directory / PIPE) as client:
        client.connect()
        printed = ours.run_command("ps\ndevice_query\nget_device_client_list\n")
        their_tool.give(b"ps", b"device_query", b"get_device_client_list")
        assert b"".join(line + b"\n" for line in their_tool.answers()).decode() == printed
        assert printed.count("\n") > 8


@as_root
def test_lines_may_be_sent_before_the_first_is_answered(ours: DaemonProcess, their_tool: Visitor) -> None:
    their_tool.give(*(b"set_default_active_thread_percentage %d" % number for number in range(1, 60)))
    assert their_tool.answers() == [b"%d.0" % number for number in range(1, 60)]


@as_root
def test_a_line_is_answered_before_the_last_is_sent(ours: DaemonProcess, their_tool: Visitor) -> None:
    """The real tool sends all of them first; the answers do not wait for the end."""
    their_tool.give(b"get_default_active_thread_percentage", ends=False)
    assert their_tool.hear() == bytes(4) + b"100.0"
    their_tool.give(b"get_default_client_priority")
    assert their_tool.answers() != []


@as_root
def test_a_tool_that_sends_no_line_is_answered_and_closed(ours: DaemonProcess, their_tool: Visitor) -> None:
    their_tool.give()
    assert their_tool.hear() == END_OF_ANSWERS
    assert their_tool.is_closed()


@as_root
def test_an_unknown_command_is_answered_as_recorded(ours: DaemonProcess, their_tool: Visitor) -> None:
    their_tool.give(b"set_pinned_mem_limit 447 0 3G", b"ps -p")
    assert their_tool.answers()[0] == b'Unknown command "set_pinned_mem_limit"'


@as_root
def test_quit_by_their_tool(ours: DaemonProcess, their_tool: Visitor) -> None:
    """The recorded daemon ended the answers, or closed; the lines after quit are not answered."""
    with contextlib.suppress(BrokenPipeError):  # the daemon may have gone before the second line
        their_tool.give(b"quit", b"ps")
    assert their_tool.hear() in (END_OF_ANSWERS, b"")
    ours.await_end()
    assert ours.log()[-1] == "Exit with status 0"
    assert "Cmd:ps" not in ours.log()


@as_root
def test_quit_by_their_tool_waits_for_clients(ours: DaemonProcess, their_tool: Visitor, directory: Path) -> None:
    with DriverClient.start(directory / PIPE) as client:
        client.connect()
        their_tool.give(b"quit")
        wait_until(lambda: any("Server will not shutdown" in line for line in ours.log()))
        assert their_tool.is_silent()
        client.exit()
        assert their_tool.hear() in (END_OF_ANSWERS, b"")
    ours.await_end()


@as_root
def test_their_tool_leaves_while_its_command_lasts(ours: DaemonProcess, directory: Path) -> None:
    with DriverClient.start(directory / PIPE) as client:
        client.connect()
        with visitor(directory / PIPE / "control_privileged") as here:
            here.as_tool()
            here.give(b"quit")
            wait_until(lambda: any("Server will not shutdown" in line for line in ours.log()))
        client.exit()
    ours.await_end()
    assert ours.log()[-1] == "Exit with status 0"
