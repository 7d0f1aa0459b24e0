"""Named servers and their namespaces, with clients: limits, owners, and what outlives a daemon or a server."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from cgroups import Cgroups
from fake_mps.install import misbehave
from fake_mps.programs import DriverClient
from fake_mps.visitor import visitor
from fuzz_lines import Lines, conversation
from processes import CLIENT, ClientProcess, DaemonProcess, alive, clients_of, kill_after, wait_until
from protocol3 import ctl, pipe, start

GIB = 1 << 30
OTHER = 10001
FATAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon of protocol 3 with a server ``a``, whose namespace ``hi`` is limited."""
    running = start(make_daemon(PYMPSD_EMULATED_DEVICES="2xH200"))
    ctl(running, "server create a")
    ctl(running, "namespace create hi --server=a --active-thread-percentage=25 --pinned-memory-limit=4G")
    return running


@pytest.fixture
def join(daemon: DaemonProcess) -> Iterator[Callable[..., ClientProcess]]:
    """Start clients that connect to a server or a namespace."""
    with clients_of(daemon) as make:
        yield lambda place, **more: make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, place)), **more)


@pytest.mark.long
def test_a_namespace_and_its_clients_outlive_the_daemon(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    client = join("a/hi").connect()
    before = pipe(daemon, "a/hi").stat().st_ino
    daemon.kill()
    meanwhile = join("a/hi")
    meanwhile.send("init")
    start(daemon)
    assert pipe(daemon, "a/hi").stat().st_ino == before, "a container may have mounted it"
    assert meanwhile.result() == "CUDA_SUCCESS"
    assert meanwhile.call("ctx 0") == "CUDA_SUCCESS"
    assert (client.call("sync"), client.call("sm"), meanwhile.call("sm")) == ("CUDA_SUCCESS", "32", "32")
    rows = ctl(daemon, "client list --server=a --format=csv,noheader").splitlines()
    assert sorted(int(row.split(",")[0]) for row in rows) == sorted((client.pid, meanwhile.pid))
    assert {row.split(",")[3] for row in rows} == {"a/hi (0)"}


@pytest.mark.long
def test_memory_of_a_device_and_of_a_cgroup_is_one_for_all_servers(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    ctl(daemon, "server create b")
    cgroups = Cgroups()
    ctl(daemon, f"memacct limit {cgroups.path}/job --hard-limit=30G")
    first, second, apart = join("a"), join("b"), join("b")
    try:
        for client in (first, second):
            cgroups.move(client.pid, "job")
        for client in (first, second, apart):
            client.connect()
        free = int(apart.call("mem").split()[0])
        assert first.call(f"alloc {20 * GIB}").split()[0] == "CUDA_SUCCESS"
        wait_until(lambda: int(apart.call("mem").split()[0]) <= free - (20 << 10), "the memory of the other server")
        assert second.call(f"alloc {20 * GIB}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "the clients of cgroup" in second.call("error")
        assert apart.call(f"alloc {120 * GIB}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
        daemon.kill()
        start(daemon)
        first.end(signal.SIGKILL)
        wait_until(
            lambda: second.call(f"alloc {20 * GIB}").split()[0] == "CUDA_SUCCESS", "the memory that is free again"
        )
        assert apart.call(f"alloc {110 * GIB}").split()[0] == "CUDA_SUCCESS"
    finally:
        for client in (first, second, apart):
            client.process.kill()
            client.process.wait()
        cgroups.remove()


@pytest.mark.long
def test_which_configuration_is_in_force_outlives_the_daemon(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(daemon.directory)
    file = daemon.directory / "mps.toml"
    file.write_text('schema_version = "1.0"\n[servers.a.namespaces.lo]\n')
    assert ctl(daemon, "config apply mps.toml") == "created namespace 'a/lo'"
    in_force = ctl(daemon, "config status")
    assert in_force.startswith(f"generation=1 source={file} applied=20")
    assert in_force.endswith(" pending=0 failed=0")
    daemon.kill()
    start(daemon)
    assert ctl(daemon, "config status") == in_force
    assert ctl(daemon, f"config status --expect {sha256(file.read_bytes()).hexdigest()}") == in_force
    assert ctl(daemon, "config status --expect ./mps.toml") == in_force
    assert ctl(daemon, "config status --expect ./none.toml", 1) == ""
    ctl(daemon, "namespace delete lo --server=a")
    assert ctl(daemon, "config status", 1).endswith(" pending=0 failed=1")
    daemon.kill()
    start(daemon)
    assert ctl(daemon, "config status", 1).endswith(" pending=0 failed=1"), "it is compared after a restart, too"
    file.write_text(f'schema_version = "1.0"\n[servers.a]\nuid = {OTHER}\n')
    ctl(daemon, "config apply mps.toml", 1)
    daemon.kill()
    start(daemon)
    status = ctl(daemon, "config status", 1)
    assert status.startswith("generation=2 ")
    assert status.endswith(" pending=0 failed=1")


@pytest.mark.long
def test_a_configuration_may_have_a_thousand_namespaces(daemon: DaemonProcess) -> None:
    tables = [f"[servers.s{server}.namespaces.n{number}]" for server in range(4) for number in range(255)]
    (daemon.directory / "mps.toml").write_text("\n".join(['schema_version = "1.0"', *tables]))
    ctl(daemon, f"config apply {daemon.directory}/mps.toml")
    wait_until(lambda: daemon.run(["config", "status"]).returncode == 0, "all sockets")
    last = pipe(daemon, "s3/n254/control")
    assert last.is_socket()
    last.unlink()
    ctl(daemon, "server get s3 status")  # no time to look at a thousand again
    wait_until(last.is_socket, "the recreated socket")
    assert not [line for line in daemon.log() if "internal error" in line]


@pytest.mark.long
def test_a_fault_stays_in_a_partition_that_has_an_executor(
    make_daemon: Callable[..., DaemonProcess], directory: Path
) -> None:
    machine = directory / "like-a-gpu.toml"
    machine.write_text('isolates_address_spaces = false\nfault_containment = "device"\n[[device]]\n')
    daemon = start(make_daemon(PYMPSD_EMULATED_DEVICES=str(machine)))
    for line in ("server create a", "server set a --contain=partition"):
        ctl(daemon, line)
    for name in ("one", "other"):
        ctl(daemon, f"sm-partition create {name} --server=a --device=0 --chunks=2")
    with clients_of(daemon) as make:

        def join(partition: str) -> ClientProcess:
            return make(CUDA_MPS_PIPE_DIRECTORY=str(pipe(daemon, "a")), CUDA_MPS_SM_PARTITION=partition).connect()

        culprit, mate, neighbour = join("one"), join("one"), join("other")
        daemon.kill()
        start(daemon)
        assert '"contain": "partition"' in ctl(daemon, "server list a --format=json")
        assert culprit.call("illegal") == "CUDA_SUCCESS"
        assert culprit.call("sync") == FATAL
        wait_until(lambda: mate.call("sync") == FATAL, "the fault at who is in the same executor")
        assert neighbour.call("add") == RIGHT
        assert ctl(daemon, "server get a status") == "Ready"
        for client in (culprit, mate):
            client.end(signal.SIGKILL)
        assert [client.call("add") for client in (join("one"), neighbour)] == [RIGHT] * 2
        # What came before keeps its executor: a fault there reaches who is in it, whatever the partition.
        ctl(daemon, "server set a --contain=server")
        culprit, mate = join("one"), join("other")
        assert culprit.call("illegal") == "CUDA_SUCCESS"
        assert culprit.call("sync") == FATAL
        wait_until(lambda: mate.call("sync") == FATAL, "the fault at who is in the same executor")
        assert neighbour.call("add") == RIGHT
        assert ctl(daemon, "server get a status") == "Fault"


def test_a_replaced_daemon_leaves_everything_to_the_next(daemon: DaemonProcess) -> None:
    before = ctl(daemon, "namespace list --format=csv"), ctl(daemon, "server list --format=csv")
    daemon.run(["-d", "-p", "3", "--replace"])
    daemon.await_end()
    daemon.pid = int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    assert (ctl(daemon, "namespace list --format=csv"), ctl(daemon, "server list --format=csv")) == before
    assert "Ready" in before[1]


@pytest.mark.long
def test_limits_outlive_the_servers_process(daemon: DaemonProcess, join: Callable[..., ClientProcess]) -> None:
    ctl(daemon, "server create b")
    neighbour = join("b").connect()
    process = int(ctl(daemon, "server get a pid"))
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: ctl(daemon, "server get a pid") == "-")
    assert ctl(daemon, "server get a status") == "Configured"
    client = join("a/hi").connect()
    assert client.call("sm") == "32"
    assert ctl(daemon, "server get a status") == "Ready"
    assert neighbour.call("sync") == "CUDA_SUCCESS"


@pytest.mark.long
def test_a_server_that_is_deleted_by_force_ends_its_clients_and_frees_the_name(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    client, process = join("a/hi").connect(), int(ctl(daemon, "server get a pid"))
    assert ctl(daemon, "server delete a", 1) == "Server 'a' has 1 active client; --force terminates it first."
    assert client.call("sync") == "CUDA_SUCCESS"
    ctl(daemon, "server delete a --force")
    assert client.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert not alive(process)
    assert not pipe(daemon, "a").exists()
    ctl(daemon, "server create a")
    assert ctl(daemon, "namespace list --server=a --format=csv,noheader").count("\n") == 0, "hi is gone"


def test_a_namespace_that_is_deleted_by_force_ends_its_clients_only(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    client, neighbour = join("a/hi").connect(), join("a").connect()
    ctl(daemon, "namespace delete hi --server=a", 1)
    ctl(daemon, "namespace delete hi --server=a --force")
    assert client.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert neighbour.call("sync") == "CUDA_SUCCESS"
    assert not pipe(daemon, "a/hi").exists()


@pytest.mark.long
def test_each_server_has_its_own_log(daemon: DaemonProcess, join: Callable[..., ClientProcess]) -> None:
    join("a").connect()
    join("").connect()
    pid = ctl(daemon, "server get a pid")
    own = (daemon.directory / "log" / "a" / "server.log").read_text().splitlines()
    assert own
    assert all(pid in line for line in own)
    assert (daemon.directory / "log" / f"uid_{os.geteuid()}" / "server.log").exists()
    assert not (daemon.directory / "log" / "server.log").exists()
    pipe(daemon, "log").write_text("hello\n")
    wait_until(lambda: daemon.log("server.log") == ["hello"], "the line of no server")


def test_a_users_link_in_a_servers_directory_is_not_followed(daemon: DaemonProcess, directory: Path) -> None:
    target = directory / "target"
    target.write_text("kept")
    target.chmod(0o600)
    pipe(daemon, "a/more").symlink_to(directory)
    assert "is not a directory" in ctl(daemon, "namespace create more --server=a", 1)
    assert ctl(daemon, "namespace list more --server=a", 1) == ""
    pipe(daemon, "a/else").mkdir()
    link = pipe(daemon, "a/else") / "control"
    link.symlink_to(target)
    reason = f"{link} is a symbolic link, not a daemon's socket: move it away"
    assert reason in ctl(daemon, "namespace create else --server=a", 1)
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("kept", 0o600)
    assert link.is_symlink()
    link.unlink()
    ctl(daemon, "namespace create else --server=a")
    assert stat.S_ISSOCK(link.lstat().st_mode)
    pipe(daemon, "a/more").unlink()


def test_files_in_a_servers_directory_stay(daemon: DaemonProcess) -> None:
    names = ("b/control", "b/log", "b/hi/control")
    pipe(daemon, "b/hi").mkdir(parents=True)
    for name in names:
        pipe(daemon, name).write_text("kept")
    for name in ("b/log", "b/control"):
        assert f"{pipe(daemon, name)} is a regular file, not a daemon's " in ctl(daemon, "server create b", 1)
        pipe(daemon, name).rename(pipe(daemon, f"{name}.mine"))
    ctl(daemon, "server create b")
    assert f"{pipe(daemon, 'b/hi/control')} is a regular" in ctl(daemon, "namespace create hi --server=b", 1)
    pipe(daemon, "b/log").unlink()
    pipe(daemon, "b/log").write_text("kept")
    ctl(daemon, "server delete b")
    assert all(file.read_text() == "kept" for file in pipe(daemon, "b").rglob("*") if file.is_file())
    assert pipe(daemon, "b/log").exists()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")
def test_a_server_accepts_its_users_clients_only(daemon: DaemonProcess) -> None:
    ctl(daemon, f"server create theirs --uid={OTHER}")
    at = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon, "theirs"))}
    assert pipe(daemon, "theirs").stat().st_uid == OTHER
    with clients_of(daemon) as make:
        assert make(**at).call("init") == "CUDA_ERROR_NOT_PERMITTED"
        assert make(OTHER, **at).connect().call("sync") == "CUDA_SUCCESS"


def test_what_cannot_start_stays_as_failed(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> None:
    daemon = start(make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher)))
    misbehave(launcher, crash="before_role")
    assert ctl(daemon, "server create a", 1).startswith("Server 'a' could not be started: the MPS server 'a' ended")
    assert ctl(daemon, "server get a status") == "Failed"
    misbehave(launcher)
    with DriverClient.start(pipe(daemon, "a")) as client:
        client.connect()
    assert ctl(daemon, "server get a status") == "Ready"


@pytest.mark.long
def test_neighbours_on_the_drivers_server_never_get_each_others_limits(
    make_daemon: Callable[..., DaemonProcess], launcher: Path
) -> None:
    daemon = start(make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher)))
    percentages = {"n1": 25, "n2": 50, "n3": 75, "default": 100}
    ctl(daemon, "server create a")
    ctl(daemon, "server create b")
    for number, name in enumerate(("n1", "n2", "n3"), 1):
        limits = f"--active-thread-percentage={percentages[name]} --pinned-memory-limit={number}G"
        ctl(daemon, f"namespace create {name} --server=a {limits}")
    expected = [name for name in percentages for _ in range(3)]

    def join_namespace(name: str) -> tuple[str, str, str]:
        with DriverClient.start(pipe(daemon, f"a/{name}")) as client:
            client.connect()
            return client.call("sms"), client.call(f"alloc {GIB // 2}"), client.call(f"alloc {5 * GIB // 2}")

    with ThreadPoolExecutor(len(expected)) as pool:
        answers = list(pool.map(join_namespace, expected))
    sms = {"n1": "32", "n2": "66", "n3": "98", "default": "132"}
    for name, (count, small, large) in zip(expected, answers, strict=True):
        assert count.split()[-1] == sms[name]
        assert small.endswith("CUDA_SUCCESS")
        assert large.endswith("CUDA_SUCCESS" if name in ("n3", "default") else "CUDA_ERROR_OUT_OF_MEMORY")
    daemon.kill()
    start(daemon)
    assert join_namespace("default")[0].split()[-1] == "132", (
        "the last limits that the killed daemon told do not stay"
    )
    assert join_namespace("n1")[0].split()[-1] == "32"


@pytest.mark.long
def test_protocol_2_does_not_lose_what_protocol_3_left(daemon: DaemonProcess) -> None:
    for line in (
        "server create a2 --allowed-devices=0",
        "sm-partition create p --server=a2 --device=0 --chunks=2",
        "server set a --max-active-thread-percentage=60",
        "memacct limit /nowhere --hard-limit=8G",
        "context-share set default_socket=off",
    ):
        ctl(daemon, line)
    text = (
        "server 'a', max-active-thread-percentage of server 'a', namespace 'hi' of server 'a', server 'a2', "
        "allowed-devices of server 'a2', SM partition 'p' of server 'a2', default_socket=off of context-share, "
        "memacct limit of cgroup /nowhere"
    )
    lost = f"protocol 2 has no {text}: start with -p 3"
    running = daemon.run(["-d", "--replace"])
    assert running.returncode == 1
    assert (
        f"{lost}, or give these up: end that daemon first (pympsd -q); only if it was killed, remove "
        in running.stderr
    )
    assert ctl(daemon, "server get a status") == "Ready"
    assert "already running" in daemon.run(["-d"]).stdout
    daemon.kill()
    killed = daemon.run(["-d"])
    assert killed.returncode == 1
    assert lost in killed.stderr
    start(daemon)
    assert ctl(daemon, "namespace get hi a active-thread-percentage") == "25.00"


def replace_daemon(daemon: DaemonProcess, *words: str) -> None:
    """Put another daemon in its place, from which nothing keeps it."""
    done = daemon.run(["-d", "--replace", *words])
    assert (done.returncode, done.stderr) == (0, "")
    daemon.await_end()
    daemon.attach(int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text()))


@pytest.mark.long
def test_a_users_server_of_protocol_3_keeps_its_limits_in_protocol_2(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = start(make_daemon(PYMPSD_EMULATED_DEVICES="H200"))
    with clients_of(daemon) as make:
        client, name = make().connect(), f"uid_{os.geteuid()}"
        ctl(daemon, f"server set {name} --active-thread-percentage=25 --pinned-memory-limit=4G")
        replace_daemon(daemon)
        (server,) = daemon.servers()
        queries = f"get_active_thread_percentage {server}\nget_device_pinned_mem_limit {server} 0"
        assert daemon.run_command(queries) == "25.0\n4G\n"
        assert make().connect().call("sm") == "32"
        assert client.call("sync") == "CUDA_SUCCESS"


@pytest.mark.long
def test_users_servers_of_protocol_2_continue_in_protocol_3(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    assert daemon.start().returncode == 0
    daemon.run_command("set_default_active_thread_percentage 50\nset_default_client_priority 1")
    with clients_of(daemon) as make:
        client = make().connect()
        replace_daemon(daemon, "-p", "3")
        assert client.call("sync") == "CUDA_SUCCESS"
        name = f"uid_{os.geteuid()}"
        assert ctl(daemon, f"server get {name} status") == "Ready"
        assert ctl(daemon, f"namespace get default {name} active-thread-percentage") == "50.00"
        assert ctl(daemon, f"namespace get default {name} client-priority") == "1"
        assert make().connect().call("sm") == "66"


def test_help_is_not_in_the_log(daemon: DaemonProcess) -> None:
    ctl(daemon, "server list")  # the last line that is there
    before = daemon.log()
    for words in (["--help"], ["-p", "2", "-h"], ["trace", "start", "--help"], ["--nonsense"], ["top", "--help"]):
        daemon.run(words)
    ctl(daemon, "server list")
    added = [line for line in daemon.log()[len(before) :] if "Accepting connection" in line]
    assert len(added) == 1


@pytest.mark.long
def test_help_is_that_of_the_daemon_that_runs(daemon: DaemonProcess) -> None:
    helped = [daemon.run(words).stdout for words in (["--help"], ["-h"], ["-p", "2", "--help"], ["-p", "3", "-h"])]
    assert set(helped) == {helped[0]}
    assert helped[0].splitlines()[-1].endswith("/pipe/control: pympsd, with servers of its own")
    assert "server create" in helped[0]
    ctl(daemon, "quit")
    assert "server create" not in daemon.run(["--help"]).stdout
    assert "server create" in daemon.run(["-p", "3", "--help"]).stdout


def test_the_drivers_server_has_all_devices(make_daemon: Callable[..., DaemonProcess], launcher: Path) -> None:
    daemon = start(make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher)))
    ctl(daemon, "server create first")
    assert "it has all devices" in ctl(daemon, "server create a --allowed-devices=0", 1)


def test_whatever_comes_to_a_socket_for_clients_only_no_command_is_taken(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    ctl(daemon, "namespace create box --server=a --clients-only")
    client = join("a/box").connect()
    daemon.kill()
    start(daemon)
    before = sum("Cmd:" in line for line in daemon.log())
    for number in range(60):
        source = random.Random(f"box/{number}")
        maker = Lines(source, (daemon.pid, os.getpid()))
        stream = conversation(source, [maker.line() for _ in range(4)] + [b"quit -t 0"])
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(str(pipe(daemon, "a/box/control")))
            try:
                sock.sendall(stream)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                continue
    lines = [line for line in daemon.log() if "Cmd:" in line]
    assert len(lines) == before, lines
    assert any("this socket is for clients only" in line for line in daemon.log())
    assert client.call("sync") == "CUDA_SUCCESS"
    assert ctl(daemon, "namespace get box a name") == "box"


@pytest.mark.skipif(os.geteuid() != 0, reason="the vendor's tool is root's here")
def test_the_drivers_wire_has_sockets_for_clients_only(
    make_daemon: Callable[..., DaemonProcess], launcher: Path
) -> None:
    daemon = start(make_daemon(PYMPSD_BACKEND="vendor", PYMPSD_VENDOR_SERVER=str(launcher)))
    ctl(daemon, "server create a")
    ctl(daemon, "namespace create box --server=a --clients-only")
    before = sum("Cmd:" in line for line in daemon.log())
    daemon.settings["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe(daemon, "a/box"))
    message = "This socket is for clients only; commands are taken in the daemon's own pipe directory."
    for words, text in ((["server", "list"], ""), ([], "ps\nquit\n")):
        done = daemon.run(words, text)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{message}\n")
    with visitor(pipe(daemon, "a/box/control")) as tool:
        tool.as_tool()
        tool.give(b"server list", b"quit")
        assert tool.answers() == [message.encode()]
    assert sum("Cmd:" in line for line in daemon.log()) == before
    daemon.settings["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe(daemon, "a/default"))
    assert "a,0," in daemon.run(["server", "list", "--format=csv"]).stdout, "that one takes commands"
    del daemon.settings["CUDA_MPS_PIPE_DIRECTORY"]
    with DriverClient.start(pipe(daemon, "a/box")) as client:
        client.connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_root_in_a_container_does_not_lift_the_containers_limits(daemon: DaemonProcess) -> None:
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    at = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon, "a/hi")), "PATH": os.environ["PATH"]}

    def ask(line: str) -> subprocess.CompletedProcess[str]:
        words = [*inside, daemon.command, *line.split()]
        return subprocess.run(words, env=at, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    lifted = ask("namespace set hi --server=a --active-thread-percentage=100")
    assert (lifted.returncode, lifted.stdout) == (
        1,
        "Insufficient privileges in a container. 'NAMESPACE SET' requires server owner.\n",
    )
    assert "--trust-containers" in lifted.stderr
    assert ask("server create mine").returncode == 1
    assert ask("quit").returncode == 1
    assert [row.split(",")[0] for row in ask("namespace list --format=csv,noheader").stdout.splitlines()] == ["hi"]
    daemon.run(["-d", "-p", "3", "--replace", "--trust-containers"])
    daemon.await_end()
    daemon.pid = int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    assert ask("namespace set hi --server=a --active-thread-percentage=50").returncode == 0
    assert ctl(daemon, "namespace get hi a active-thread-percentage") == "50.00"


def test_lines_of_control_log_name_the_server_and_the_namespace(
    daemon: DaemonProcess, join: Callable[..., ClientProcess]
) -> None:
    client = join("a/hi").connect()
    pid = ctl(daemon, "server get a pid")
    ctl(daemon, "server delete a --force")
    lines = daemon.log()
    assert f"NEW CLIENT {client.pid} from user {os.geteuid()}: Server already exists (a/hi)" in lines
    assert f"NEW SERVER {pid}: Ready (a)" in lines
    about = [line for line in lines if f"erver {pid}" in line]
    assert len(about) > 2
    assert all(line.endswith(" (a)") for line in about), about


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_client_in_a_container_is_shown_with_its_pid_there(daemon: DaemonProcess) -> None:
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, CLIENT]
    at = {**daemon.environment, "CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon, "a/hi")), "PATH": os.environ["PATH"]}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with kill_after(subprocess.Popen(inside, env=at, text=True, **streams)) as process:
        client = ClientProcess(process).connect()
        for _ in range(2):
            (row,) = json.loads(ctl(daemon, "client list --format=json"))
            assert (row["container_pid"], client.call("pid")) == (1, "1")
            namespace = os.stat(f"/proc/{row['pid']}/ns/pid").st_ino
            assert row["maws-ns"] == f"a/hi ({namespace})"
            daemon.kill()
            start(daemon)
        assert ctl(daemon, "client get 1 pid") == str(row["pid"])
        assert ctl(daemon, "client terminate 1") == ""
        assert client.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
