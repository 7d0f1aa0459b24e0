"""Compiled kernels in real executors: processes that are killed, kernels on disk, and programs that are hostile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_disk import Disk
from processes import PYMPSD, ClientProcess, DaemonProcess, alive, children_of, wait_until

from pympsd_server.ptx.compiled_tier.compilation.compiler_process import MAX_PROCESSES

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = """.visible .entry k(.param .u64 p) {{ .reg .b32 %i, %n, %z, %v<{registers}>; .reg .b64 %a; .reg .pred %p;
ld.param.u64 %a, [p]; ld.global.u32 %z, [%a]; mov.u32 %i, %tid.x; mov.u32 %n, 0;
{body}
st.global.u32 [%a], %n; ret; }}
"""
SLOW_ROUNDS = 40
NOT_KEPT = "compiled kernels are not kept for later runs: "
NO_HOME = 10001
USERS = 10001, 10002

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users and mounts disks")


def write(directory: Path, name: str, body: str, registers: int = 1, top: str = "") -> Path:
    """Write a module with a kernel, which stores %n."""
    path = directory / f"{name}.ptx"
    path.write_text(HEADER + top + KERNEL.format(body=body, registers=registers))
    return path


def loop(rounds: int, body: str = "") -> str:
    """A loop after which %n is `rounds`."""
    return f"AGAIN: add.u32 %n, %n, 1; {body} setp.lt.u32 %p, %n, {rounds}; @%p bra AGAIN;"


NEVER = "setp.lt.u32 %p, %i, %z; @%p bra AGAIN; add.u32 %z, %z, 0;\n" * 700
"""Branches that are never taken, but take LLVM 9 s."""


@pytest.fixture
def slow(directory: Path) -> Path:
    """A kernel that takes LLVM 9 s, and the NumPy tier a few."""
    return write(directory, "slow", loop(SLOW_ROUNDS, NEVER))


@pytest.fixture
def endless(directory: Path) -> Path:
    """A kernel that takes LLVM 9 s, and the NumPy tier days."""
    return write(directory, "endless", loop(1 << 30, NEVER))


@pytest.fixture
def quick(directory: Path) -> Path:
    """A kernel that takes LLVM 50 ms."""
    return write(directory, "quick", loop(100))


@pytest.fixture
def kernels(directory: Path) -> Path:
    """The directory of all users' compiled kernels."""
    path = directory / "kernels"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def daemon(make_daemon: MakeDaemon, kernels: Path, request: pytest.FixtureRequest) -> DaemonProcess:
    """A daemon whose clients' kernels are kept; compiled at their first launch if the parameter is "compiled"."""
    running = make_daemon(PYMPSD_KERNEL_CACHE=str(kernels), PYMPSD_TIER=getattr(request, "param", "auto"))
    assert running.start().returncode == 0
    return running


def executor_of(daemon: DaemonProcess) -> int:
    """Return the only executor."""
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    return executor


def begin_compilation(client: ClientProcess, kernel: Path, executor: int) -> int:
    """Let a client run a kernel; return the process that compiles it, a child of the executor's compiler."""
    client.send(f"ptx {kernel} 32")
    wait_until(lambda: compilations_of(executor), "the compilation")
    (compilation,) = compilations_of(executor)
    return compilation


def compilations_of(executor: int) -> list[int]:
    """Return the processes that compile kernels for an executor."""
    return [child for compiler in children_of(executor) for child in children_of(compiler)]


def half_written(kernels: Path) -> list[Path]:
    return list(kernels.glob("*/*.new"))


# --- processes that are killed while a kernel is compiled


@pytest.mark.long
def test_a_killed_compilation_costs_a_kernel_nothing_but_speed(
    daemon: DaemonProcess, make_client: MakeClient, slow: Path, quick: Path, kernels: Path
) -> None:
    client, other = make_client().connect(), make_client().connect()
    os.kill(begin_compilation(client, slow, executor_of(daemon)), signal.SIGKILL)
    assert other.call("add") == RIGHT
    assert client.result() == f"CUDA_SUCCESS {SLOW_ROUNDS}"
    wait_until(
        lambda: any("kernel k stays in NumPy: ChildProcessError" in line for line in daemon.log("server.log")),
        "the line in server.log",
    )
    assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    assert half_written(kernels) == []


def test_a_compilation_is_repeated_if_the_compiler_was_killed(
    daemon: DaemonProcess, make_client: MakeClient, endless: Path, quick: Path, kernels: Path
) -> None:
    """Another kernel may have been the reason, as when memory was short."""
    client, other = make_client().connect(), make_client().connect()
    executor = executor_of(daemon)
    compilation = begin_compilation(client, endless, executor)
    (compiler,) = children_of(executor)
    os.kill(compiler, signal.SIGKILL)
    wait_until(lambda: set(compilations_of(executor)) - {compilation}, "a second attempt")
    assert other.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    client.end(signal.SIGKILL)
    assert half_written(kernels) == []


@pytest.mark.long(but=["executor"])
@pytest.mark.parametrize("victim", ["executor", "server"])
def test_a_killed_executor_takes_its_compiler_along(
    daemon: DaemonProcess, make_client: MakeClient, endless: Path, quick: Path, kernels: Path, victim: str
) -> None:
    client = make_client().connect()
    executor = executor_of(daemon)
    compilation = begin_compilation(client, endless, executor)
    os.kill(executor if victim == "executor" else daemon.servers()[0], signal.SIGKILL)
    result = client.result()
    assert result == ("CUDA_ERROR_LAUNCH_FAILED 0" if victim == "executor" else "CUDA_ERROR_MPS_RPC_FAILURE 0")
    client.end()
    wait_until(lambda: not alive(compilation) and not alive(executor), "the end of both processes")
    assert half_written(kernels) == []
    assert make_client().connect().call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"


@pytest.mark.long
def test_a_killed_daemon_stops_no_compilation(daemon: DaemonProcess, make_client: MakeClient, slow: Path) -> None:
    client, executor = make_client().connect(), executor_of(daemon)
    compilation = begin_compilation(client, slow, executor)
    daemon.kill()
    assert client.result() == f"CUDA_SUCCESS {SLOW_ROUNDS}"
    assert alive(compilation)
    daemon.start()
    client.end()
    wait_until(lambda: not alive(compilation), "the end of a compilation that nobody needs")


@pytest.mark.long
def test_the_kernels_of_a_killed_client_are_not_compiled_for_others(
    daemon: DaemonProcess, make_client: MakeClient, endless: Path, kernels: Path
) -> None:
    client, other = make_client().connect(), make_client().connect()
    compilation = begin_compilation(client, endless, executor_of(daemon))
    client.end(signal.SIGKILL)
    assert other.call("add") == RIGHT
    wait_until(lambda: not alive(compilation), "the end of a compilation that nobody needs")
    assert other.call("add") == RIGHT
    assert half_written(kernels) == []


# --- users


@pytest.mark.long
@needs_root
def test_a_users_many_processes_do_not_keep_another_users_kernel_waiting(
    make_daemon: MakeDaemon, directory: Path, endless: Path, kernels: Path
) -> None:
    daemon = make_daemon(PYMPSD_KERNEL_CACHE=str(kernels))
    assert daemon.start("-d", "-multiuser-server").returncode == 0
    users = *[USERS[0]] * (MAX_PROCESSES + 1), USERS[1]
    with contextlib.ExitStack() as clients:
        *many, other = [clients.enter_context(killed(daemon.client(uid))).connect() for uid in users]
        executor = executor_of(daemon)
        for client in many:
            client.send(f"ptx {endless} 32")
        wait_until(
            lambda: len(compilations_of(executor)) == MAX_PROCESSES // 2, "the compilations that a user may have"
        )
        assert other.call(f"ptx {write(directory, 'long', loop(100_000))} 32") == "CUDA_SUCCESS 100000"
        assert len(list(kernels.glob("*/*"))) == 1
        assert len(compilations_of(executor)) == MAX_PROCESSES // 2


# --- kernels on disk


@needs_root
@pytest.mark.parametrize("daemon", ["compiled"], indirect=True)
def test_each_user_has_kernels_of_his_own(
    daemon: DaemonProcess, make_client: MakeClient, quick: Path, kernels: Path
) -> None:
    for uid in USERS:
        client = make_client(uid).connect()
        assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
        client.end()
    for uid in USERS:
        folder = kernels / str(uid)
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (uid, 0o700)
        (file,) = folder.iterdir()
        assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (uid, 0o600)
    assert not any(NOT_KEPT in line for line in daemon.log("server.log"))


def _give(path: Path, uid: int) -> None:
    for file in (path, *path.iterdir()):
        os.chown(file, uid, uid)


def _plant_folder(own: Path, others: Path) -> None:
    """A folder of another user, under the name of this one's."""
    shutil.copytree(others, own)
    _give(own, int(others.name))


def _plant_readable_folder(own: Path, others: Path) -> None:
    _plant_folder(own, others)
    for path in (own, *own.iterdir()):
        path.chmod(0o755)


def _plant_link(own: Path, others: Path) -> None:
    own.symlink_to(others)


def _plant_open_folder(own: Path, others: Path) -> None:
    shutil.copytree(others, own)
    _give(own, int(own.name))
    own.chmod(0o777)


@needs_root
@pytest.mark.long(but=["link-compiled"])
@pytest.mark.parametrize("daemon", ["compiled"], indirect=True)
@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (_plant_folder, ": Permission denied"),
        (
            _plant_readable_folder,
            f" belongs to user {USERS[0]} and has mode 755; it has to belong to user {USERS[1]}",
        ),
        (_plant_link, " is not a directory"),
        (_plant_open_folder, f" belongs to user {USERS[1]} and has mode 777; it has to belong"),
    ],
    ids=["folder", "readable", "link", "open"],
)
def test_kernels_that_another_user_planted_are_not_executed(
    daemon: DaemonProcess,
    make_client: MakeClient,
    quick: Path,
    kernels: Path,
    plant: Callable[[Path, Path], None],
    reason: str,
) -> None:
    others, own = (kernels / str(uid) for uid in USERS)
    first = make_client(USERS[0]).connect()
    assert first.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    first.end()
    plant(own, others)
    before = {path: path.read_bytes() for path in others.iterdir()}
    client = make_client(USERS[1]).connect()
    for _ in range(2):
        assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    daemon.wait_for_server_messages()
    (warning,) = [line for line in daemon.log("server.log") if NOT_KEPT in line]
    assert f"{own}{reason}" in warning
    assert {path: path.read_bytes() for path in others.iterdir()} == before


def _half(good: bytes, _: bytes) -> bytes:
    return good[: len(good) // 2]


def _flipped(good: bytes, _: bytes) -> bytes:
    return good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]


def _of_another_kernel(_: bytes, another: bytes) -> bytes:
    return another


@pytest.mark.long(but=["_half-compiled"])
@pytest.mark.parametrize("daemon", ["compiled"], indirect=True)
@pytest.mark.parametrize("damage", [_half, _flipped, _of_another_kernel])
def test_a_damaged_kernel_is_compiled_again(
    daemon: DaemonProcess,
    make_client: MakeClient,
    directory: Path,
    kernels: Path,
    quick: Path,
    damage: Callable[[bytes, bytes], bytes],
) -> None:
    client = make_client().connect()
    assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    (file,) = kernels.glob("*/*")
    assert client.call(f"ptx {write(directory, 'other', loop(77))} 32") == "CUDA_SUCCESS 77"
    (other,) = {*kernels.glob("*/*")} - {file}
    client.end()
    wait_until(lambda: daemon.run_command(f"get_client_list {daemon.servers()[0]}") == "", "the end of the client")
    good = file.read_bytes()
    file.write_bytes(damage(good, other.read_bytes()))
    # A new server: executors keep the kernels that they have loaded.
    (server,) = daemon.servers()
    daemon.run_command(f"shutdown_server {server} -f")
    wait_until(lambda: not alive(server), "the server's end")
    assert make_client().connect().call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
    assert file.read_bytes() == good


@pytest.mark.long(but=["ro-Read-only file system"])
@needs_root
@pytest.mark.parametrize(
    ("options", "reason"), [("size=4k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_on_a_full_or_read_only_disk_kernels_are_compiled_each_time(
    make_daemon: MakeDaemon, kernels: Path, directory: Path, quick: Path, options: str, reason: str
) -> None:
    daemon = make_daemon(PYMPSD_KERNEL_CACHE=str(kernels), PYMPSD_TIER="compiled")
    disk = Disk(daemon, kernels, options)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    with killed(daemon.client()) as client:
        client.connect()
        assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
        assert client.call(f"ptx {write(directory, 'other', loop(77))} 32") == "CUDA_SUCCESS 77"
        daemon.wait_for_server_messages()
        (warning,) = [line for line in daemon.log("server.log") if NOT_KEPT in line]
        assert f"{kernels}/0: {reason}; PYMPSD_KERNEL_CACHE names another directory" in warning
        assert half_written(disk.seen) == []


@needs_root
def test_a_user_without_a_home_is_warned_once(make_daemon: MakeDaemon, quick: Path) -> None:
    daemon = make_daemon(PYMPSD_KERNEL_CACHE="", PYMPSD_TIER="compiled")
    assert daemon.start().returncode == 0
    with killed(daemon.client(NO_HOME)) as client:
        client.connect()
        for _ in range(2):
            assert client.call(f"ptx {quick} 32") == "CUDA_SUCCESS 100"
        daemon.wait_for_server_messages()
        (warning,) = [line for line in daemon.log("server.log") if NOT_KEPT in line]
        assert f"user {NO_HOME} has no home directory; PYMPSD_KERNEL_CACHE names another directory" in warning


@contextlib.contextmanager
def killed(client: ClientProcess) -> Iterator[ClientProcess]:
    """Use a client of a daemon that is not the fixture's, and kill it."""
    try:
        yield client
    finally:
        client.end(signal.SIGKILL)


# --- hostile programs

MAX_EXECUTOR_BYTES = 1 << 30
ALIVE = 48


def everywhere(blocks: int) -> str:
    """Blocks that may each branch to all of them, and do so until %n is 200."""
    labels = ", ".join(f"L{i}" for i in range(blocks))
    step = "add.u32 %n, %n, 1; setp.ge.u32 %p, %n, 200; @%p bra END; brx.idx %n, T;"
    return f"T: .branchtargets {labels};\n" + "".join(f"L{i}: {step}\n" for i in range(blocks)) + "END:"


def loops(count: int, alive: int) -> str:
    """Small loops, while registers are alive; none has a second round."""
    first = "".join(f"mov.u32 %v{i}, 1;" for i in range(alive))
    body = "".join(f"L{i}: setp.lt.u32 %p, %i, %n; @%p bra L{i};\n" for i in range(count))
    return first + body + "".join(f"add.u32 %n, %n, %v{i};" for i in range(alive))


HOSTILE = {
    "nested": ("{" * 10_000 + "}" * 10_000, "CUDA_ERROR_INVALID_PTX", "nests too deeply"),
    "tables": (everywhere(1500), "CUDA_ERROR_INVALID_PTX", "branches have more than 2000000 targets"),
    "table": (everywhere(300), "CUDA_SUCCESS 200", ""),
    "statements": ("add.u32 %n, %n, 1;" * 1_000_000, "CUDA_ERROR_INVALID_PTX", "more than 400000 statements"),
    "operations": ("add.u32 %n, %n, 1;\n" * 100_000, "CUDA_SUCCESS 100000", ""),
    "loops": (loops(10_000, ALIVE), f"CUDA_SUCCESS {ALIVE}", ""),
}


def most_memory(pid: int) -> int:
    """Return the most memory in bytes that a process has had."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.long(but=["table", "nested"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_other_clients_continue_next_to_a_hostile_kernel(
    daemon: DaemonProcess, make_client: MakeClient, directory: Path, kind: str
) -> None:
    body, result, reason = HOSTILE[kind]
    path = write(directory, kind, body, registers=ALIVE)
    hostile, other = make_client().connect(), make_client().connect()
    assert other.call("add") == RIGHT
    hostile.send(f"ptx {path} 32")
    run_until_result(hostile, other)
    assert hostile.result() == result
    if reason:
        assert reason in hostile.call("error")
    assert hostile.call("add") == RIGHT
    assert most_memory(executor_of(daemon)) < MAX_EXECUTOR_BYTES


def run_until_result(hostile: ClientProcess, other: ClientProcess) -> None:
    """Let a client launch kernels until another has its result; its first launch must not wait for that result."""
    launches = 0

    def is_done() -> bool:
        nonlocal launches
        assert other.call("add") == RIGHT
        launches += 1
        return hostile.has_result()

    wait_until(is_done, "the hostile client's result")
    assert launches > 1


@pytest.mark.long(but=["10k"])
@pytest.mark.parametrize(
    ("count", "result"), [(10_000, "CUDA_SUCCESS 5"), (100_000, "CUDA_ERROR_NOT_SUPPORTED")], ids=["10k", "100k"]
)
def test_modules_of_many_kernels_are_loaded_or_refused_next_to_another_client(
    daemon: DaemonProcess, make_client: MakeClient, directory: Path, count: int, result: str
) -> None:
    many = "".join(f".visible .entry k{i}() {{ ret; }}\n" for i in range(count))
    path = write(directory, "many", "mov.u32 %n, 5;", top=many)
    hostile, other = make_client().connect(), make_client().connect()
    hostile.send(f"ptx {path} 32")
    run_until_result(hostile, other)
    assert hostile.result() == result
    assert result == "CUDA_SUCCESS 5" or "the description of the module's functions has" in hostile.call("error")
    assert most_memory(executor_of(daemon)) < MAX_EXECUTOR_BYTES


def test_other_clients_continue_next_to_a_kernel_that_never_ends(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    hostile, other = make_client().connect(), make_client().connect()
    assert hostile.call("endless") == "CUDA_SUCCESS"
    before = most_memory(executor_of(daemon))
    for _ in range(5):
        assert other.call("add") == RIGHT
    hostile.end(signal.SIGKILL)
    assert other.call("add") == RIGHT
    assert most_memory(executor_of(daemon)) < before + (256 << 20)


def test_endless_recursion_is_a_fault(daemon: DaemonProcess, make_client: MakeClient, directory: Path) -> None:
    top = ".func deep(.reg .u32 x) { .reg .u32 y; add.u32 y, x, 1; call deep, (y); ret; }\n"
    path = write(directory, "deep", "call deep, (%n);", top=top)
    hostile = make_client().connect()
    executor = executor_of(daemon)
    assert hostile.call(f"ptx {path} 32") == "CUDA_ERROR_ILLEGAL_ADDRESS 0"
    assert most_memory(executor) < MAX_EXECUTOR_BYTES
    hostile.end()
    wait_until(lambda: daemon.run_command(f"get_server_status {daemon.servers()[0]}") == "ACTIVE\n", "the recovery")
    assert make_client().connect().call("add") == RIGHT
