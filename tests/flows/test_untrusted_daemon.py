"""The operator's tools and a daemon that is neither root's nor the caller's: what it gets, and what it can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from at_terminal import at_terminal
from processes import PYMPSD, DaemonProcess

from pympsd.control import CannotAsk, Control, RunningDaemon
from pympsd.vocabulary import untrusted
from pympsd.wire import frames

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user's daemon"),
    pytest.mark.long,
]
OTHER = 10001
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b2J\r"
ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b2J\x0d"
PROGRAM = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[3])
from pympsd.wire import frames
kind = socket.SOCK_SEQPACKET if sys.argv[4] == "packets" else socket.SOCK_STREAM
listener = socket.socket(socket.AF_UNIX, kind)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
os.setuid(int(sys.argv[2]))
listener.listen()
print(flush=True)
behaviour = json.loads(sys.stdin.readline())
while True:
    peer, _ = listener.accept()
    lines = open(sys.argv[5], "ab", buffering=0)
    try:
        data = b""
        while True:
            while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:4], "little"):
                more = peer.recv(65536)
                if not more:
                    raise ConnectionError
                data += more
            length, kind, _ = frames.decode_header(data)
            body, data = data[8 : 8 + length], data[8 + length :]
            if kind == frames.OPERATOR_FILE:
                lines.write(b"file: " + body + b"\\n")
            if kind == frames.OPERATOR_LINE:
                lines.write(body + b"\\n")
                for part in behaviour["before"]:
                    peer.sendall(bytes.fromhex(part))
                while behaviour["endless"]:
                    peer.sendall(bytes.fromhex(behaviour["endless"]))
                if behaviour["answers"] is not None:
                    name = body.decode().split()[0]
                    text = behaviour["answers"].get(name, behaviour["answers"].get("", ""))
                    peer.sendall(frames.encode(frames.OPERATOR_STDOUT, text.encode("utf-8", "surrogateescape")))
                    peer.sendall(frames.encode(frames.OPERATOR_DONE, b"\\0"))
    except OSError:
        peer.close()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    """Start a program of another user that listens as a daemon, and answers every line in a way of its own."""
    started = []

    def start(
        answers: dict[str, str] | None = None, before: tuple[bytes, ...] = (), endless: bytes = b"", uid: int = OTHER
    ) -> None:
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, str(directory / "pipe" / "control"), str(uid)),
                *(str(Path(frames.__file__).parents[2]), "stream", str(directory / "received")),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        (directory / "received").touch()
        (directory / "received").chmod(0o666)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        behaviour = {"answers": answers, "before": [part.hex() for part in before], "endless": endless.hex()}
        child.stdin.write(json.dumps(behaviour) + "\n")
        child.stdin.flush()

    yield start
    for child in started:
        with child:
            child.kill()


@pytest.fixture
def tool(directory: Path) -> DaemonProcess:
    """The operator's tool."""
    return DaemonProcess(directory)


def get_received(tool: DaemonProcess) -> list[str]:
    """Return what the other user's program got."""
    return (tool.directory / "received").read_text().splitlines()


CHANGES = (
    "quit -t 0",
    "set_default_active_thread_percentage 5",
    "config apply secret.toml",
    "server create a",
    "namespace set a --server=list",
    "client terminate 5",
    "trace start /tmp/get",
    "no-such list",  # no query of ours, but it asks only
)


def test_the_words_of_a_query_say_that_it_is_one() -> None:
    from pympsd.commands.grammar.registry import COMMANDS

    assert not any(command.takes_file and command.is_query for command in COMMANDS.values())
    assert all(untrusted.is_query(f"{command.name} 5") == command.is_query for command in COMMANDS.values())
    assert all(map(untrusted.is_query, ("", "help", "--help", "server help", "get_server_list --json")))


@pytest.mark.parametrize("words", CHANGES[:7])
def test_changes_and_files_are_not_sent(start: Start, tool: DaemonProcess, tmp_path: Path, words: str) -> None:
    start({"": "done\n"})
    secret = tmp_path / "secret.toml"
    secret.write_text("password = 'x'\n")
    words = words.replace("secret.toml", str(secret))
    for arguments, text in ((words.split(), ""), ([], f"{words}\n")):
        done = tool.run(arguments, text)
        assert (done.returncode, done.stdout) == (1, "")
        owner, refused = done.stderr.splitlines()
        assert owner.endswith(f"is run by user {OTHER}, neither root nor you")
        assert refused == (
            f"'{words}' was not sent: it may change something or contain a file, and that daemon is another user's; "
            "--trust-daemon sends it"
        )
    assert get_received(tool) == []
    assert tool.run(["--trust-daemon", *words.split()]).stdout == "done\n"
    assert get_received(tool)[-1] == words
    assert ("file: password = 'x'" in get_received(tool)) == ("config" in words)


def test_queries_are_sent_and_the_lines_next_to_them_are_not(start: Start, tool: DaemonProcess) -> None:
    start({"": "yes\n"})
    done = tool.run([], "get_server_list\nquit\nps\n")
    assert (done.returncode, done.stdout) == (1, "yes\nyes\n")
    assert get_received(tool) == ["get_server_list", "ps"]
    assert tool.run(["ps"]).returncode == 0


def test_the_short_options_send_nothing_either(start: Start, tool: DaemonProcess, tmp_path: Path) -> None:
    start({"": "done\n"})
    (tmp_path / "a.toml").write_text("x")
    for arguments in (["--quit"], ["-a", str(tmp_path / "a.toml")]):
        assert tool.run(arguments).returncode == 1
    assert get_received(tool) == []


def test_under_the_vendors_name_lines_are_sent_as_by_its_tool_and_files_are_not(
    start: Start, tool: DaemonProcess, tmp_path: Path
) -> None:
    start({"": "done\n"})
    tool.command = str(tmp_path / "nvidia-cuda-mps-control")
    os.symlink(PYMPSD, tool.command)
    (tmp_path / "a.toml").write_text("x")
    assert tool.run([], "quit\n").stdout == "done\n"
    done = tool.run(["config", "apply", str(tmp_path / "a.toml")])
    assert done.returncode == 1
    assert "was not sent" in done.stderr
    assert get_received(tool) == ["quit"]


def test_the_callers_own_daemon_gets_everything(start: Start, tool: DaemonProcess) -> None:
    start({"": "done\n"}, uid=0)
    done = tool.run(["quit"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_in_python_changes_take_an_argument(start: Start, tool: DaemonProcess) -> None:
    start({"": "[]"})
    pipe = str(tool.directory / "pipe")
    with pytest.warns(RuntimeWarning, match="neither root nor you"), pytest.raises(CannotAsk, match="not sent"):
        RunningDaemon(pipe).command("quit")
    with pytest.warns(RuntimeWarning, match="neither root nor you"):
        assert RunningDaemon(pipe).servers() == ()
    with pytest.warns(RuntimeWarning, match="neither root nor you"):
        assert RunningDaemon(pipe, trust_daemon=True).command("quit") == "[]"
    assert get_received(tool) == ["get_server_list --json", "quit"]


@pytest.mark.parametrize("uid", [0, OTHER])
def test_no_control_character_reaches_a_terminal(start: Start, tool: DaemonProcess, uid: int) -> None:
    complaint = frames.encode(frames.OPERATOR_STDERR, f"E{ATTACK}E\n".encode())
    start({"": f"{ATTACK}é\tx\n"}, before=(complaint,), uid=uid)
    with at_terminal([PYMPSD, "ps"], tool.environment) as screen:
        screen.until(f"E{ESCAPED}E")
        screen.until(f"{ESCAPED}é")
        assert screen.process.wait(10) == 0
    done = tool.run(["ps"])
    assert ("\x1b" in done.stdout) == (uid == 0), "programs get the bytes of a daemon that is trusted"


def top_answers(**changed: Any) -> dict[str, str]:
    """Return what a daemon answers to the queries of top, with other values in some places."""
    client = {
        "pid": 5,
        "uid": 7,
        "command": "x",
        "pid_namespace": 1,
        "namespace": None,
        "active_thread_percentage": None,
        "memory_bytes": {"0": 5},
        "contexts": [{"id": 1, "number": 1, "device": 0}],
    }
    server = {
        "pid": 4,
        "uid": 7,
        "name": "s",
        "status": "READY",
        "active_thread_percentage": 5,
        "pinned_memory_limits": {},
        "launches": {"0": 1},
        "clients": [{**client, **changed.pop("client", {})}],
    }
    device = {"ordinal": 0, "uuid": "u", "pci": "p", "name": "n", "multiprocessors": 1, "memory_bytes": 1}
    answers = {
        "get_server_list": [{**server, **changed.pop("server", {})}],
        "get_waiting_list": [],
        "device_query": {"devices": [{**device, **changed.pop("device", {})}]},
    }
    return {"": "[]", **{name: json.dumps(value) for name, value in (answers | changed).items()}}


ODD: dict[str, dict[str, str]] = {
    "other keys": top_answers(get_server_list=[{"pid": 1}]),
    "a list for a number": top_answers(server={"pid": [1]}),
    "a huge number": top_answers(client={"memory_bytes": {"0": 10**400}}),
    "a negative number": top_answers(client={"pid": -5}),
    "null": top_answers(get_server_list=None),
    "a text": top_answers(device_query="x"),
    "not JSON": {"": f"oops {ATTACK}"},
    "deep JSON": {"": "[" * 100000},
    "nothing": {"": ""},
    "undecodable": {"": "\udcff\udcfe"},
}


@pytest.mark.parametrize("odd", ODD)
def test_top_reports_an_answer_that_no_daemon_gives(start: Start, tool: DaemonProcess, odd: str) -> None:
    start(ODD[odd])
    done = tool.run(["top", "--once"])
    assert (done.returncode, done.stdout) == (1, "")
    _, reason = done.stderr.splitlines()
    assert reason.startswith("the MPS control daemon's answer is not ")
    assert reason.isprintable()


def test_top_shows_no_control_characters(start: Start, tool: DaemonProcess) -> None:
    hostile = f"a{ATTACK}\nb"
    start(
        top_answers(
            server={"name": hostile, "status": hostile},
            client={"command": hostile, "namespace": hostile},
            device={"name": hostile},
        )
    )
    output = tool.run(["top", "--once"]).stdout
    assert len(output.splitlines()) == 4
    assert all(line.isprintable() for line in output.split("\n"))
    assert tool.run(["top", "--json"]).stdout.strip().isprintable()


def test_a_refusal_in_python_has_no_control_characters(start: Start, tool: DaemonProcess) -> None:
    refusal = frames.encode(frames.OPERATOR_STDERR, ATTACK.encode()) + frames.encode(frames.OPERATOR_DONE, b"\1")
    start(None, before=(refusal,))
    with Control(str(tool.directory / "pipe"), warn=str) as control, pytest.raises(CannotAsk) as raised:
        control.query("ps")
    assert str(raised.value).isprintable()


ENDLESS = {
    "texts": (frames.encode(frames.OPERATOR_STDOUT, b"x" * 65536), "is longer than 16777216 bytes"),
    "unknown frames": (frames.encode(999, b"x" * 65536), "is longer than 16777216 bytes"),
    "work": (frames.encode(frames.OPERATOR_WORKING), ""),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_an_end_is_ended(start: Start, tool: DaemonProcess, what: str) -> None:
    endless, reason = ENDLESS[what]
    start(endless=endless)
    done = tool.run(["--timeout", "2", "ps"])
    assert done.returncode in (1, 2)
    assert len(done.stdout) <= 16 << 20
    assert reason in done.stderr or "it accepted the connection, then sent nothing for 2 s" in done.stderr
    top = tool.run(["--timeout", "2", "top", "--once"])
    assert top.returncode in (1, 2)
    assert top.stdout == ""


def test_a_daemon_that_claims_to_work_is_not_waited_for(start: Start, tool: DaemonProcess) -> None:
    start(None, before=(frames.encode(frames.OPERATOR_WORKING),))
    done = tool.run(["--timeout", "0.3", "ps"])
    assert done.returncode == 2
    assert "sent nothing for 0.3 s" in done.stderr


def test_a_frame_longer_than_any_daemons_is_refused(start: Start, tool: DaemonProcess) -> None:
    start(
        None,
        before=((1 << 31).to_bytes(4, "little") + frames.OPERATOR_STDOUT.to_bytes(2, "little") + b"\0\0",),
        uid=0,
    )
    done = tool.run(["ps"])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"sent a frame of {1 << 31} bytes, which no daemon does" in done.stderr


@pytest.mark.parametrize("uid", [0, 10002])
def test_a_start_in_the_directory_of_an_untrusted_daemon_names_that_daemon(
    start: Start, tool: DaemonProcess, uid: int
) -> None:
    start()
    done = tool.run(["-d"], uid=uid)
    assert done.returncode == 1
    assert f"of user {OTHER} listens at {tool.directory}/pipe/control" in done.stderr
