"""Limits by rule with clients: in both protocols, on our own server and the driver's, and over a restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fake_mps.programs import DriverClient
from processes import DaemonProcess, clients_of

GIB = 1 << 30
MINE = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]


def write(daemon: DaemonProcess, rules: str) -> str:
    """Write a configuration file; return its path."""
    path = daemon.directory / "rules.toml"
    path.write_text(f'schema_version = "1.0"\n{rules}')
    return str(path)


def apply(daemon: DaemonProcess, rules: str, *start: str) -> str:
    """Apply rules to the daemon that runs, or start it with them; return what it says."""
    words = ["-a", write(daemon, rules)]
    done = daemon.start(*start, *words) if start else daemon.run(words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_protocol_2_has_rules(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="H200")
    rule = f'[[rules]]\ncgroup = "{MINE}"\nactive_thread_percentage = 50\npinned_memory_limit = "1G"\n'
    apply(daemon, rule, "-d")
    with clients_of(daemon) as make:
        client = make(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="80").connect()
        assert (client.call("sm"), client.call("mem").split()[1]) == ("66", "1024")
        assert make(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25").connect().call("sm") == "32"
        listed = daemon.run(["rules", "list", "--format=csv,noheader"]).stdout
        assert listed == f"1,-,cgroup={MINE},1G,50.00,-\n"
        tested = daemon.run(["rules", "test", str(client.pid), "--format=csv,noheader"])
        assert tested.stdout.replace('"', "").startswith(f"1,-,true,cgroup is {MINE}")
        daemon.kill()
        assert daemon.start().returncode == 0
        assert daemon.run(["rules", "list", "--format=csv,noheader"]).stdout == listed, "they outlive a killed daemon"
        assert make().connect().call("sm") == "66"
        assert apply(daemon, "rules = []") == "set rules: 1 rule -> no rules\n"
        assert make().connect().call("sm") == "132"
        assert client.call("sm") == "66", "it keeps its limits"
        assert "[[rules]]" not in daemon.run(["config", "show"]).stdout


def test_another_user_sees_only_the_own_processes(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="H200")
    assert daemon.start("-d").returncode == 0
    if os.geteuid() == 0:
        done = daemon.run(["rules", "test", str(os.getpid())], uid=10001)
        assert done.returncode == 1
        assert "'RULES TEST' requires the process's owner." in done.stderr
    done = daemon.run(["config", "apply", write(daemon, '[[rules]]\nuser = "-"')])
    assert (done.returncode, done.stderr.count("rules.0.user must be a user's name")) == (1, 1)


def test_rules_on_the_drivers_server(start_driver_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_driver_daemon()

    def limits() -> tuple[str, str]:
        with DriverClient.start(daemon.directory / "pipe") as client:
            client.connect()
            return client.call("sms").split()[-1], client.call(f"alloc {3 * GIB // 2}").split()[-1]

    assert limits() == ("132", "CUDA_SUCCESS")
    rule = f'[[rules]]\nuser = {os.geteuid()}\nactive_thread_percentage = 25\npinned_memory_limit = "1G"\n'
    apply(daemon, rule)
    assert limits() == ("32", "CUDA_ERROR_OUT_OF_MEMORY")
    apply(
        daemon, f"[[rules]]\nexecutable = '/nowhere'\n{rule}".replace(f"user = {os.geteuid()}", "user = 4294967294")
    )
    assert limits() == ("132", "CUDA_SUCCESS"), "the last client's limits do not stay"
