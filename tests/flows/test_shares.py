"""Users who take what they can get from root's daemon: root, and every other user, are served all the same."""

from __future__ import annotations

import csv
import io
import os
import re
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from processes import PYMPSD, ClientProcess, DaemonProcess, clients_of, wait_until
from protocol3 import ctl, start

from pympsd.journal.log_folders import MAX_KEPT

MakeDaemon = Callable[..., DaemonProcess]
Join = Callable[..., ClientProcess]
GREEDY, OTHER, THIRD = 10001, 10002, 10003
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root serves other users"), pytest.mark.long]


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> DaemonProcess:
    """Root's daemon of protocol 3, which the test starts."""
    return make_daemon(PYMPSD_EMULATED_DEVICES="H200")


@pytest.fixture
def join(daemon: DaemonProcess) -> Iterator[Join]:
    """Start clients of users, which are ended after the test."""
    with clients_of(daemon) as make:
        yield make


def start_limited(daemon: DaemonProcess, descriptors: int) -> DaemonProcess:
    """Start a daemon that can open no more files than this; its soft limit is lower at first."""
    script = daemon.directory / "limited"
    script.write_text(f'#!/bin/sh\nulimit -S -n 64\nulimit -H -n {descriptors}\nexec {PYMPSD} "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    start(daemon)
    daemon.command = PYMPSD
    return daemon


def refusal_of(daemon: DaemonProcess, uid: int, line: str) -> str:
    """Give a command as a user; return why it was refused, or nothing."""
    done = daemon.run(line.split(), uid=uid)
    return done.stdout if done.returncode else ""


def repeat_until_refused(daemon: DaemonProcess, uid: int, line: str) -> tuple[int, str]:
    """Repeat a command, with another number each time, until it is refused; return how often it was not, and why."""
    for number in count():
        if refusal := refusal_of(daemon, uid, line.format(number)):
            return number, refusal
    raise AssertionError


def row(daemon: DaemonProcess, uid: int, resource: str) -> list[int]:
    """Return a user's share of a resource, what is used of it, and how often more was refused."""
    shown = csv.reader(io.StringIO(ctl(daemon, f"share list --uid={uid} --format=csv,noheader")))
    (numbers,) = [cells[2:] for cells in shown if cells[1] == resource]
    return [int(number) for number in numbers]


def check_others_are_served(daemon: DaemonProcess, join: Join) -> None:
    """Fail unless root and two more users have what they ask for."""
    ctl(daemon, "server create roots")
    file = daemon.directory / "more.toml"
    file.write_text(f'schema_version = "1.0"\n[servers.filed]\nuid = {OTHER}\n[servers.filed.namespaces.batch]\n')
    ctl(daemon, f"config apply {file}")
    for uid in (0, OTHER, THIRD):
        assert join(uid).connect().call("add") == RIGHT
    assert refusal_of(daemon, THIRD, "server create thirds") == ""
    assert refusal_of(daemon, THIRD, "namespace create more --server=thirds") == ""
    place = str(daemon.directory / "pipe" / "filed" / "batch")
    assert join(OTHER, CUDA_MPS_PIPE_DIRECTORY=place).connect().call("add") == RIGHT


@pytest.mark.long
def test_a_user_who_makes_servers_until_refused_keeps_nobody_out(daemon: DaemonProcess, join: Join) -> None:
    start(daemon, "--user-share", "servers=6", "--user-share=processes=20")
    count, refusal = repeat_until_refused(daemon, GREEDY, "server create greedy{}")
    assert count == 6
    assert refusal == (
        "User 10001 has 6 of at most 6 servers (greedy0, greedy1, greedy2, greedy3, greedy4, greedy5): delete one of "
        "them ('server delete <name>'), or ask an administrator for a larger share (--user-share servers=7, or "
        "servers in [shares] of the configuration file).\n"
    )
    assert join(GREEDY).connect().call("add") == RIGHT, "one's own server is not a part of the share"
    check_others_are_served(daemon, join)
    assert row(daemon, GREEDY, "servers") == [6, 6, 1]
    assert row(daemon, GREEDY, "processes") == [20, 12, 0]
    assert "Share of each user: servers 6, processes 20, " in "\n".join(daemon.log())
    assert refusal_of(daemon, GREEDY, "server delete greedy3") == ""
    assert refusal_of(daemon, GREEDY, "server create again") == ""
    assert ctl(daemon, "server create gift --uid=10001") == "", "root may give a user more"
    daemon.kill()
    start(daemon, "--user-share", "servers=6")
    assert row(daemon, GREEDY, "servers") == [6, 7, 0]
    assert "has 7 of at most 6 servers" in refusal_of(daemon, GREEDY, "server create later")


@pytest.mark.long
def test_a_user_who_makes_namespaces_until_refused_leaves_descriptors_for_all(
    daemon: DaemonProcess, join: Join
) -> None:
    start_limited(daemon, 512)
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    share = row(daemon, GREEDY, "descriptors")[0]
    assert share == 64
    assert refusal_of(daemon, GREEDY, "server create greedy") == ""
    assert refusal_of(daemon, GREEDY, "server create greedier") == ""
    count, refusal = repeat_until_refused(daemon, GREEDY, "namespace create n{} --server=greedy")
    assert refusal.startswith(
        f"User 10001 has {share} of at most {share} descriptors, and 2 more are needed: delete "
    )
    used = row(daemon, GREEDY, "descriptors")[1]
    assert used == 2 * 10 + 2 * count == share
    # The connection of the last command may still be open.
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) - before <= used, "no more open than are counted")
    check_others_are_served(daemon, join)


@pytest.mark.long
def test_a_user_who_makes_and_deletes_servers_leaves_few_log_folders(daemon: DaemonProcess) -> None:
    logs = daemon.directory / "log"
    start(daemon)
    for number in range(MAX_KEPT + 3):
        assert refusal_of(daemon, GREEDY, f"server create s{number}") == ""
        daemon.wait_for_server_messages()
        assert refusal_of(daemon, GREEDY, f"server delete s{number}") == ""
        if number == MAX_KEPT:
            daemon.kill()
            start(daemon)
    kept = {folder.name for folder in logs.iterdir() if folder.is_dir()}
    assert kept <= {f"s{number}" for number in range(3, MAX_KEPT + 3)}
    assert {folder.stat().st_uid for folder in logs.iterdir() if folder.is_dir()} <= {GREEDY}


def test_a_configuration_file_sets_shares_which_outlive_the_daemon(daemon: DaemonProcess) -> None:
    start(daemon, "--user-share", "namespaces=1")
    file = daemon.directory / "shares.toml"
    file.write_text('schema_version = "1.0"\n[shares]\nnamespaces = 2\nbuffers = "32M"\n')
    assert ctl(daemon, f"config apply {file}") == "set shares: namespaces 1 -> 2, buffers 16777216 -> 33554432"
    assert ctl(daemon, f"config apply {file}") == "no change"
    assert refusal_of(daemon, GREEDY, "server create greedy") == ""
    count, refusal = repeat_until_refused(daemon, GREEDY, "namespace create n{} --server=greedy")
    assert (count, refusal[:50]) == (2, "User 10001 has 2 of at most 2 namespaces: delete o")
    daemon.kill()
    start(daemon, "--user-share", "namespaces=1")
    assert row(daemon, GREEDY, "namespaces")[:2] == [2, 2]
    shown = ctl(daemon, "config show")
    assert "[shares]\nnamespaces = 2\nbuffers = 33554432\n" in shown
    file.write_text('schema_version = "1.0"\n')
    ctl(daemon, f"config apply {file} --prune")
    assert row(daemon, GREEDY, "namespaces")[:1] == [1], "what the option says"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[shares]\nserver = 1\n", "shares.server is not a key of users' shares; did you mean servers?"),
        ("[shares]\nservers = 300\n", "the share of servers must be a number from 0 to 256, not 300"),
        ("shares = 3\n", "shares must be a table, not 3"),
    ],
)
def test_a_file_with_a_wrong_share_is_refused(daemon: DaemonProcess, text: str, sentence: str) -> None:
    file = daemon.directory / "shares.toml"
    file.write_text(f'schema_version = "1.0"\n{text}')
    done = daemon.run(["-d", "-p", "3", "--apply", str(file)])
    assert done.returncode == 1
    assert sentence in done.stderr


def test_wrong_shares_of_option_and_variable_start_no_daemon(daemon: DaemonProcess, make_daemon: MakeDaemon) -> None:
    done = daemon.run(["-d", "--user-share", "sockets=3"])
    names = "servers, processes, namespaces, descriptors, sm-chunks, connections, buffers"
    text = f"users have no share of 'sockets'; they have shares of {names}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"--user-share: {text}\n")
    done = make_daemon(PYMPSD_USER_SHARES="servers=x").run(["-d"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "PYMPSD_USER_SHARES must be RESOURCE=VALUE, several with commas (the share of servers must be a number from "
        "0 to 256, not 'x'), not 'servers=x'\n"
    )


def test_the_option_beats_the_variable_and_protocol_2_has_shares_of_connections(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(PYMPSD_USER_SHARES="connections=100,buffers=8M,servers=3")
    done = daemon.start("-d", "--user-share", "connections=50")
    assert done.returncode == 0
    assert done.stderr == "users have no share of servers in protocol 2, which has no named servers\n"
    lines = ctl(daemon, "share list --uid=10001 --format=csv").splitlines()
    assert lines == [
        "uid,resource,share,used,refused",
        "10001,connections,50,0,0",
        "10001,buffers,8388608,0,0",
    ]


def test_metrics_have_shares_what_is_used_and_what_was_refused(daemon: DaemonProcess) -> None:
    path = daemon.directory / "metrics"
    start(daemon, "--user-share", "servers=1", "--metrics", str(path))
    repeat_until_refused(daemon, GREEDY, "server create s{}")
    text = metrics(path)
    assert 'pympsd_user_share{resource="servers"} 1\n' in text
    assert 'pympsd_user_used{uid="10001",resource="servers"} 1\n' in text
    assert 'pympsd_user_refusals_total{uid="10001",resource="servers"} 1\n' in text
    assert re.search(r'pympsd_user_used\{uid="10001",resource="processes"\} 2\n', text)


def metrics(path: Path) -> str:
    """Return what is served at a socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
