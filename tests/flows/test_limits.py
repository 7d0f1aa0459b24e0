"""Limits with a real daemon: percentages at five levels, affinity, memory limits at three, connections, priorities.

The figures are those recorded on an H200 (servers-and-clients, several-gpus, multiuser-and-limits).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, wait_until

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "context_pool.py"
EACH = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
UNSUPPORTED = "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"
FULL = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
REACHED = "Failed to accept new client. Maximum number of clients ({}) reached."
Start = Callable[..., ClientProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start clients, which are killed after the test."""
    client_processes: list[ClientProcess] = []

    def client(daemon: DaemonProcess, **more: str) -> ClientProcess:
        client_processes.append(daemon.client(**more))
        return client_processes[-1]

    yield client
    for process in client_processes:
        if process.process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.process.communicate(timeout=SECONDS)


def running(make_daemon: Callable[..., DaemonProcess], **settings: str) -> DaemonProcess:
    daemon = make_daemon(**settings)
    done = daemon.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return daemon


def with_context(client: ClientProcess) -> ClientProcess:
    assert client.call("init") == "CUDA_SUCCESS"
    assert client.call("newctx 0") == "CUDA_SUCCESS", client.call("error")
    return client


def in_server_log(daemon: DaemonProcess, text: str, times: int = 1) -> None:
    wait_until(lambda: daemon.log("server.log").count(text) >= times, f"{text!r} in server.log")
    assert daemon.log("server.log").count(text) == times


def one_line(daemon: DaemonProcess, beginning: str) -> None:
    def find_lines() -> list[str]:
        return [line for line in daemon.log("server.log") if line.startswith(beginning)]

    wait_until(find_lines, f"{beginning!r} in server.log")
    assert len(find_lines()) == 1


# --- percentages


def test_percentages_at_all_levels(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = running(make_daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")

    def sees(**environment: str) -> str:
        return with_context(start(daemon, **{PERCENTAGE: "", **environment})).call("sm")

    assert sees() == "66", "the daemon's default"
    (server,) = daemon.servers()
    daemon.run_command(f"set_active_thread_percentage {server} 80")
    assert sees() == "104", "the server's own replaces it, and may be higher"
    assert sees(**{PERCENTAGE: "33.3"}) == "42", "the client's lowers it"
    assert sees(**{PERCENTAGE: "90"}) == "104", "and cannot raise it"
    for text in ("0", "-5", "101", "x"):
        assert sees(**{PERCENTAGE: text}) == "104", "what is not a percentage is not a limit"
    client = start(daemon, **{PERCENTAGE: "66.7", EACH: "1"})
    assert client.call("init") == "CUDA_SUCCESS"
    assert (client.call("newctx 0"), client.call("sm")) == ("CUDA_SUCCESS", "88")
    client.call(f"env {PERCENTAGE} 20")
    assert (client.call("newctx 0"), client.call("sm")) == ("CUDA_SUCCESS", "26"), "a context's lowers it"
    assert client.call("ctxaff 0 9") == "CUDA_SUCCESS 10", "an affinity lowers that"
    assert client.call("sm") == "10"
    assert client.call("ctxaff 0 27") == f"{UNSUPPORTED} 0", "and cannot raise it"
    assert client.call("sm") == "10", "the context before is still current"


@pytest.mark.long
def test_a_clients_percentage_is_fixed_when_it_starts(daemon: DaemonProcess, start: Start) -> None:
    client = with_context(start(daemon, **{PERCENTAGE: "30"}))
    client.call(f"env {EACH} 1")
    client.call(f"env {PERCENTAGE} 10")
    assert (client.call("newctx 0"), client.call("sm"), client.call("affinity")) == ("CUDA_SUCCESS", "38", "38")
    daemon.run_command(f"set_active_thread_percentage {daemon.servers()[0]} 10")
    assert client.call("sm") == "38"
    assert (client.call("newctx 0"), client.call("affinity")) == ("CUDA_SUCCESS", "38")


def test_the_recorded_client_with_a_percentage_for_each_context(daemon: DaemonProcess, start: Start) -> None:
    """Client 987 of servers-and-clients.txt, step by step."""
    client = start(daemon, **{PERCENTAGE: "80", EACH: "1"})
    assert client.call("init") == "CUDA_SUCCESS"
    assert (client.call("newctx 0"), client.call("sm")) == ("CUDA_SUCCESS", "104")
    client.call(f"env {PERCENTAGE} 20")
    assert (client.call("newctx 0"), client.call("sm")) == ("CUDA_SUCCESS", "26")
    client.call(f"env {PERCENTAGE} 90")
    assert (client.call("newctx 0"), client.call("sm")) == ("CUDA_SUCCESS", "104")
    assert client.call("ctxaff 0 0") == f"{UNSUPPORTED} 0"
    assert client.call("dtor") == "CUDA_SUCCESS"
    for requested, granted in {1: 8, 2: 8, 3: 8, 7: 8, 24: 24, 60: 60}.items():
        assert client.call(f"ctxaff 0 {requested}") == f"CUDA_SUCCESS {granted}"
        assert client.call("dtor") == "CUDA_SUCCESS"
    for requested in (131, 132, 133):
        assert client.call(f"ctxaff 0 {requested}") == f"{UNSUPPORTED} 0"
        assert "1 to 104 SMs" in client.call("error")
    client.end()
    wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "its end")
    lines = [line for line in daemon.log("server.log") if line.endswith("is ACTIVE")]
    numbers = [int(line.rpartition(", ")[2].partition("}")[0]) for line in lines]
    assert numbers == list(range(1, 10)), "recorded: a refused context takes no number"


@pytest.mark.long
def test_two_clients_with_half_each_run_on_disjoint_multiprocessors(daemon: DaemonProcess, start: Start) -> None:
    first, second = (with_context(start(daemon, **{PERCENTAGE: "50"})) for _ in range(2))
    places = []
    for client in (first, second):
        code, _, numbers = client.call("places 1000").partition(" ")
        assert code == "CUDA_SUCCESS"
        places.append(set(numbers.split(",")))
        assert len(places[-1]) == 66
    assert not places[0] & places[1]


def test_a_pool_of_contexts(daemon: DaemonProcess) -> None:
    """The example in the documentation, which prints what it asked for and what it got."""
    environment = {**daemon.environment, "PYMPSD_REQUIRE_MPS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLE], env=environment, capture_output=True, text=True, timeout=2 * SECONDS
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *contexts, verdict = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in contexts] == [
        "asked for 1 of 132 multiprocessors, has 8",
        "asked for 2 of 132 multiprocessors, has 8",
        "asked for 44 of 132 multiprocessors, has 44",
        "asked for 88 of 132 multiprocessors, has 88",
    ]
    assert [line.partition(": ")[2] for line in contexts] == [
        f"{16 * count} blocks met, on {count} multiprocessors" for count in (8, 8, 44, 88)
    ]
    assert verdict.startswith("Each grid filled its context")
    wait_until(lambda: daemon.run_command("ps") == "", "its end")


def sms_of(client: ClientProcess, devices: int = 2) -> list[tuple[str, str]]:
    """Return the SMs of each device as the client sees them: the attribute, and a context's execution affinity."""
    seen = []
    for device in range(devices):
        assert client.call(f"newctx {device}") == "CUDA_SUCCESS", client.call("error")
        seen.append((client.call(f"sm {device}"), client.call("affinity")))
    return seen


def test_a_clients_own_percentage_is_by_device(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = running(make_daemon, PYMPSD_EMULATED_DEVICES="2xH200", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    for text, expected in {"0=25,1=75": [32, 66], "1=10": [66, 12], "25": [32, 32]}.items():
        client = wait_for_begun(start(daemon, **{PERCENTAGE: text}))
        assert sms_of(client) == [(str(count), str(count)) for count in expected], text
    records = daemon.run_command("get_server_list --json")
    assert '"active_thread_percentage": {"0": 25.0, "1": 50.0}' in records
    client = wait_for_begun(start(daemon, CUDA_VISIBLE_DEVICES="1,0", **{PERCENTAGE: "0=10"}))
    assert sms_of(client) == [("12", "12"), ("66", "66")], "an index counts among the devices that it sees"


def test_a_contexts_own_percentage_is_by_device(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = running(make_daemon, PYMPSD_EMULATED_DEVICES="2xH200")
    client = wait_for_begun(start(daemon, CUDA_VISIBLE_DEVICES="1,0", **{PERCENTAGE: "80", EACH: "1"}))
    client.call(f"env {PERCENTAGE} 0=20,1=50")
    assert [affinity for _, affinity in sms_of(client)] == ["26", "66"], "as the client counts its devices"
    client.call(f"env {PERCENTAGE} 1=100")
    assert [affinity for _, affinity in sms_of(client)] == ["104", "104"], "no limit of its own, nor a higher one"
    client.call(f"env {PERCENTAGE} 0=20,7=50")
    assert client.call("newctx 0") == "CUDA_ERROR_INVALID_VALUE"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: '7=50': 7 is not a device" in client.call("error")
    lenient = wait_for_begun(start(daemon, PYMPSD_LENIENT_LIMITS="1", **{EACH: "1"}))
    lenient.call(f"env {PERCENTAGE} 0=20,7=50")
    assert [affinity for _, affinity in sms_of(lenient)] == ["26", "132"]


def test_a_percentage_of_a_device_that_is_not_there_is_refused(daemon: DaemonProcess, start: Start) -> None:
    for entry, allowed in {
        "7=50": "7 is not a device",
        "0=0": "above 0",
        "0=x": "a number",
        "50": "the form is",
    }.items():
        client = start(daemon, **{PERCENTAGE: f"0=25,{entry}"})
        assert client.call("init") == "CUDA_ERROR_INVALID_VALUE", entry
        why = client.call("error")
        assert why.startswith(f"{PERCENTAGE}: '{entry}': ")
        assert allowed in why
    client = wait_for_begun(start(daemon, PYMPSD_LENIENT_LIMITS="1", **{PERCENTAGE: "0=25,7=50"}))
    assert sms_of(client, 1) == [("32", "32")]


def test_percentages_of_a_namespace_are_by_device(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    assert daemon.start("-d", "-p", "3").returncode == 0
    server = f"uid_{os.geteuid()}"
    assert daemon.run(["server", "create", "--uid", str(os.geteuid())]).returncode == 0
    limited = ["namespace", "set", "default", f"--server={server}", "--active-thread-percentage=0=50,1=25"]
    assert daemon.run(limited).returncode == 0
    client = wait_for_begun(start(daemon))
    assert sms_of(client) == [("66", "66"), ("32", "32")]
    lowered = wait_for_begun(start(daemon, **{PERCENTAGE: "30"}))
    assert sms_of(lowered) == [("38", "38"), ("32", "32")]
    daemon.kill()
    assert daemon.start("-d", "-p", "3").returncode == 0
    assert sms_of(wait_for_begun(start(daemon))) == [("66", "66"), ("32", "32")], "they outlive a killed daemon"


def test_the_pool_of_contexts_needs_a_daemon(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PYMPSD_BACKEND": "emulated"}
    done = subprocess.run(
        [sys.executable, "-Wignore", EXAMPLE], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "start pympsd -d" in done.stderr


# --- memory limits


def limit_of(client: ClientProcess, device: int = 0) -> int:
    """Return what the client may hold on a device, in MiB, as cuMemGetInfo reports it."""
    assert client.call(f"newctx {device}") == "CUDA_SUCCESS", client.call("error")
    return int(client.call("mem").split()[1])


def wait_for_begun(client: ClientProcess) -> ClientProcess:
    assert client.call("init") == "CUDA_SUCCESS", client.call("error")
    return client


@pytest.fixture
def three_devices(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon on three devices, with a default limit of 3G on device 0 and none elsewhere."""
    daemon = running(make_daemon, PYMPSD_EMULATED_DEVICES="3xH200")
    daemon.run_command("set_default_device_pinned_mem_limit 0 3G")
    return daemon


def uuids(daemon: DaemonProcess) -> list[str]:
    words = daemon.run_command("device_query --csv").replace("\n", ",").split(",")
    return [word for word in words if word.startswith("GPU-")]


@pytest.mark.long
def test_memory_limits_at_three_levels(three_devices: DaemonProcess, start: Start) -> None:
    daemon = three_devices
    client = wait_for_begun(start(daemon))
    assert limit_of(client) == 3 << 10, "the daemon's default"
    assert limit_of(client, 1) == 143155, "none on the others"
    (server,) = daemon.servers()
    daemon.run_command(f"set_device_pinned_mem_limit {server} 0 4G")
    assert limit_of(wait_for_begun(start(daemon))) == 4 << 10, "the server's own replaces it, and may be higher"
    lowered = wait_for_begun(start(daemon, **{MEMORY: "0=1G,1=2048MB"}))
    assert [limit_of(lowered, device) for device in range(3)] == [1 << 10, 2 << 10, 143155]
    assert limit_of(wait_for_begun(start(daemon, **{MEMORY: "0=8G"}))) == 4 << 10, "the client's cannot raise it"
    assert limit_of(wait_for_begun(start(daemon, **{MEMORY: "0=0"}))) == 4 << 10, "nor lift it"
    assert limit_of(wait_for_begun(start(daemon, CUDA_MPS_DEVICE_MEM_LIMIT="0=1G"))) == 1 << 10, (
        "the documents' other name"
    )
    assert limit_of(client) == 3 << 10, "an earlier client keeps its own"


@pytest.mark.long
def test_memory_limits_by_uuid_and_prefix_and_the_last_one_wins(three_devices: DaemonProcess, start: Start) -> None:
    daemon = three_devices
    ids = uuids(daemon)
    cases = {
        f"{ids[1]}=1G": [3 << 10, 1 << 10, 143155],
        f"{ids[1][:12]}=1G": [3 << 10, 1 << 10, 143155],
        f"1=2G,{ids[1]}=1G": [3 << 10, 1 << 10, 143155],
        f"{ids[1]}=1G,1=2G": [3 << 10, 2 << 10, 143155],
        f"1=2G,{ids[1][:12]}=0": [3 << 10, 143155, 143155],
        " 0 = 1g , 2 = 1024mb ,": [1 << 10, 143155, 1 << 10],
    }
    for text, expected in cases.items():
        client = wait_for_begun(start(daemon, **{MEMORY: text}))
        assert [limit_of(client, device) for device in range(3)] == expected, text


def test_a_refusal_names_the_variable_that_is_set(daemon: DaemonProcess, start: Start) -> None:
    client = start(daemon, CUDA_MPS_DEVICE_MEM_LIMIT="1G")
    assert client.call("init") == "CUDA_ERROR_INVALID_VALUE"
    assert client.call("error").startswith("CUDA_MPS_DEVICE_MEM_LIMIT: '1G': ")


@pytest.mark.long
def test_an_index_counts_as_the_client_counts(three_devices: DaemonProcess, start: Start) -> None:
    client = wait_for_begun(start(three_devices, CUDA_VISIBLE_DEVICES="2,0", **{MEMORY: "0=1G,1=2G"}))
    assert [limit_of(client, device) for device in range(2)] == [1 << 10, 2 << 10]
    hidden = start(three_devices, CUDA_VISIBLE_DEVICES="2,0", **{MEMORY: "2=1G"})
    assert hidden.call("init") == "CUDA_ERROR_INVALID_VALUE"
    ids = uuids(three_devices)
    assert "'2=1G': 2 is not a device of this process" in hidden.call("error")
    assert f"its devices are 0 ({ids[2]}), 1 ({ids[0]})" in hidden.call("error")


IMPOSSIBLE = {
    "junk": "junk is not a device of this process",
    "1G": "the form is DEVICE=LIMIT, as in 0=1G",
    "0:1G": "the form is DEVICE=LIMIT, as in 0=1G",
    "0=": "a whole number from 1 and G or M",
    "0=abc": "a whole number from 1 and G or M",
    "0=1T": "a whole number from 1 and G or M",
    "0=0G": "0 for no limit",
    "9=1G": "its devices are 0 (GPU-",
    "GPU-=1G": "begins several UUIDs",
    "GPU-ffff=1G": "not a device of this process",
}


@pytest.mark.long
def test_an_impossible_limit_is_refused_with_its_entry(three_devices: DaemonProcess, start: Start) -> None:
    for entry, allowed in IMPOSSIBLE.items():
        client = start(three_devices, **{MEMORY: f"0=1G,{entry},1=2G"})
        assert client.call("init") == "CUDA_ERROR_INVALID_VALUE", entry
        why = client.call("error")
        assert why.startswith(f"{MEMORY}: '{entry}': ")
        assert allowed in why
        assert "PYMPSD_LENIENT_LIMITS=1" in why
        assert client.call("count") == "None"
        client.end()
        one_line(three_devices, f"Refusing {entry} in {MEMORY}: ")


@pytest.mark.long
def test_an_impossible_limit_may_be_ignored(three_devices: DaemonProcess, start: Start) -> None:
    for entry in IMPOSSIBLE:
        client = wait_for_begun(start(three_devices, PYMPSD_LENIENT_LIMITS="1", **{MEMORY: f"0=1G,{entry},1=2G"}))
        limits = [limit_of(client, device) for device in range(3)]
        assert limits == [1 << 10, 2 << 10, 143155], f"the others hold next to {entry}"
        client.end()
        one_line(three_devices, f"Ignoring {entry} in {MEMORY}: ")


def test_the_log_says_it_in_the_clients_voice(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = running(make_daemon, PYMPSD_LOG_DIALECT="r580")
    client = wait_for_begun(start(daemon, PYMPSD_LENIENT_LIMITS="1", **{MEMORY: "7=1G"}))
    one_line(daemon, f"Ignoring 7=1G in {MEMORY}: ")
    lines = (daemon.directory / "log" / "server.log").read_text().splitlines()
    (line,) = [line for line in lines if "Ignoring" in line]
    assert f" Client {client.pid:>5}] Ignoring 7=1G in {MEMORY}: " in line


def test_a_very_long_text_is_refused_in_few_words(daemon: DaemonProcess, start: Start) -> None:
    client = start(daemon, **{MEMORY: "0=" + "9" * 100_000 + ",x" * 5})
    assert client.call("init") == "CUDA_ERROR_INVALID_VALUE"
    why = client.call("error")
    assert "(and 5 more)" in why
    assert len(why) < 1000


def test_a_limit_is_the_process_s(daemon: DaemonProcess, start: Start) -> None:
    """All contexts of a client share it, what each costs included."""
    client = wait_for_begun(start(daemon, **{MEMORY: "0=2G"}))
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    free_with_one = int(client.call("mem").split()[0])
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    free_with_two, total = map(int, client.call("mem").split())
    assert total == 2 << 10
    assert free_with_one - free_with_two == pytest.approx(2048 - free_with_one, abs=2), (
        "the second costs what the first did"
    )
    assert client.call(f"alloc {1 << 30}").split()[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert client.call("dtor") == "CUDA_SUCCESS"
    assert client.call(f"alloc {1 << 30}").split()[0] == "CUDA_SUCCESS"


# --- connections


@pytest.mark.long
def test_one_process_may_hold_all_60_and_a_freed_slot_is_usable_immediately(
    daemon: DaemonProcess, start: Start
) -> None:
    client, other = wait_for_begun(start(daemon)), wait_for_begun(start(daemon))
    assert client.call("contexts 70") == f"60 {FULL}"
    assert "1 of the device's 60 connections, and 0 are free: no more clients fit" in client.call("error")
    full = "takes 1 of the device's 60 connections, and 0 are free: no more clients fit until contexts of others end"
    in_server_log(daemon, f"Client {client.pid}: a context of this process {full}")
    in_server_log(daemon, REACHED.format(60))
    for _ in range(2):
        assert other.call("newctx 0") == FULL
    in_server_log(daemon, REACHED.format(60), 3)
    for _ in range(3):
        assert client.call("dtor") == "CUDA_SUCCESS"
        assert other.call("newctx 0") == "CUDA_SUCCESS", "immediately"
        assert client.call("newctx 0") == FULL
        assert other.call("dtor") == "CUDA_SUCCESS"
        assert client.call("newctx 0") == "CUDA_SUCCESS"
    client.end(signal.SIGKILL)
    wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "its end")
    assert other.call("contexts 70") == f"60 {FULL}"


@pytest.mark.long
def test_a_refused_context_takes_no_id(daemon: DaemonProcess, start: Start) -> None:
    """Recorded, with driver 580: after 48 contexts and 22 refusals the next context has ID 49."""
    client, other = wait_for_begun(start(daemon)), wait_for_begun(start(daemon))
    assert client.call("contexts 60") == "60 CUDA_SUCCESS"
    for _ in range(5):
        assert other.call("newctx 0") == FULL
    assert f"Client {other.pid} disconnected" not in daemon.log("server.log"), "it is refused, not sent away"
    client.end()
    wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "its end")
    assert other.call("newctx 0") == "CUDA_SUCCESS"
    daemon.wait_for_server_messages()
    _, row = daemon.run_command("ps").splitlines()
    assert row.split()[:2] == [str(other.pid), "61"]
    other.end()
    wait_until(lambda: f"Client {other.pid} disconnected" in daemon.log("server.log"), "its end")


@pytest.mark.long
def test_each_device_has_its_own_connections(make_daemon: Callable[..., DaemonProcess], start: Start) -> None:
    daemon = running(make_daemon, PYMPSD_EMULATED_DEVICES="2xH200")
    client = wait_for_begun(start(daemon))
    assert client.call("contexts 61") == f"60 {FULL}"
    assert client.call("newctx 1") == "CUDA_SUCCESS"


@pytest.mark.long(but=["32-3", "2-60"])
@pytest.mark.parametrize(("text", "room"), [("32", 3), ("4", 30), ("3", 30), ("2", 60), ("33", 3), ("x", 60)])
def test_more_connections_leave_room_for_fewer_contexts(
    daemon: DaemonProcess, start: Start, text: str, room: int
) -> None:
    client = wait_for_begun(start(daemon, **{CONNECTIONS: text}))
    assert client.call("contexts 70") == f"{room} {FULL}"
    in_server_log(daemon, REACHED.format(60))


@pytest.mark.long
def test_many_simultaneous_clients_are_not_refused_while_there_is_room(daemon: DaemonProcess, start: Start) -> None:
    """12 processes, each of which wants 5 of the 60 at the same time, twice; one more is refused."""
    clients = [wait_for_begun(start(daemon)) for _ in range(12)]
    for _ in range(2):
        for client in clients:
            client.send("contexts 5")
        assert [client.result() for client in clients] == ["5 CUDA_SUCCESS"] * 12
        assert wait_for_begun(start(daemon)).call("newctx 0") == FULL
        for _ in range(5):
            for client in clients:
                client.send("dtor")
            assert {client.result() for client in clients} == {"CUDA_SUCCESS"}


# --- before Volta


def test_before_volta_there_are_16_contexts_and_neither_percentages_nor_memory_limits(
    make_daemon: Callable[..., DaemonProcess], start: Start
) -> None:
    daemon = running(make_daemon, PYMPSD_EMULATED_DEVICES="P100", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    client = wait_for_begun(start(daemon, **{PERCENTAGE: "10", EACH: "1", MEMORY: "0=1G,junk"}))
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    assert (client.call("sm"), client.call("mem").split()[1]) == ("56", "16276")
    assert client.call("ctxaff 0 8") == f"{UNSUPPORTED} 0"
    assert "Volta or newer" in client.call("error")
    assert client.call("contexts 20") == f"15 {FULL}"
    in_server_log(daemon, REACHED.format(16))


# --- priority


@pytest.mark.long
def test_a_change_of_the_default_priority_is_logged_with_the_next_client(daemon: DaemonProcess, start: Start) -> None:
    """Recorded: ``Client Priority set to`` in server.log; a client's own setting is not logged."""

    def lines_after(**environment: str) -> list[str]:
        """The lines logged when a client has come and gone."""
        client = with_context(start(daemon, **environment))
        client.end()
        wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "its end")
        return [line for line in daemon.log("server.log") if line.startswith("Client Priority set to")]

    assert lines_after() == []
    daemon.run_command("set_default_client_priority 1")
    assert lines_after() == ["Client Priority set to 1"]
    assert lines_after() == ["Client Priority set to 1"]
    assert lines_after(CUDA_MPS_CLIENT_PRIORITY="0") == ["Client Priority set to 1"]
    daemon.run_command("set_default_client_priority 0")
    assert lines_after(CUDA_MPS_CLIENT_PRIORITY="1") == ["Client Priority set to 1", "Client Priority set to 0"]
