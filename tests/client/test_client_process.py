"""Whole processes: the warning without a daemon, the requirement of one, fork, exit, and what an executor leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

NO_DAEMON = "/nonexistent"
BEGINNING = """
import os, sys, threading
from pympsd_client import driver as cuda, last_error
import pympsd_client
def name(answer): return answer[0].name
def children():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found += map(int, open(f"/proc/self/task/{task}/children").read().split())
        except OSError:
            continue  # a thread that ended meanwhile
    return found
def ready(device=0):
    for answer in (cuda.cuInit(0), cuda.cuCtxCreate(None, 0, device), cuda.cuMemAlloc(64)):
        assert answer[0] == cuda.CUresult.CUDA_SUCCESS, (answer, last_error())
    return answer[1]
"""


def _run(program: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program without a daemon, on emulated devices of its own."""
    return subprocess.run(
        [sys.executable, *options, "-c", BEGINNING + textwrap.dedent(program)],
        env={"CUDA_MPS_PIPE_DIRECTORY": NO_DAEMON, "PYMPSD_BACKEND": "emulated", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_program_without_a_daemon_warns_once_and_runs() -> None:
    done = _run("ready(); ready(); print(children() != [])")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert done.stderr.count("PrivateExecutorWarning: no MPS control daemon at /nonexistent/control") == 1
    assert "running on a private emulated device" in done.stderr


@pytest.mark.long
def test_the_warning_points_at_the_program_and_can_be_silenced() -> None:
    assert "<string>:" in _run("ready()").stderr
    done = _run("ready()", "-Wignore::RuntimeWarning")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_require_a_daemon() -> None:
    done = _run("print(name(cuda.cuInit(0)), last_error(), children())", PYMPSD_REQUIRE_MPS="1")
    assert done.stdout.startswith("CUDA_ERROR_MPS_CONNECTION_FAILED no MPS control daemon at /nonexistent/control")
    assert done.stdout.endswith("and PYMPSD_REQUIRE_MPS=1 asks for one []\n")
    assert done.stderr == ""


def test_a_requirement_that_is_neither_yes_nor_no_runs_on_nothing() -> None:
    done = _run("print(name(cuda.cuInit(0)), last_error(), children())", PYMPSD_REQUIRE_MPS="true")
    assert done.stdout.startswith("CUDA_ERROR_INVALID_VALUE PYMPSD_REQUIRE_MPS must be 0 or 1, not 'true'")
    assert done.stdout.endswith(" []\n")
    assert done.stderr == ""


@pytest.mark.long
def test_empty_settings_are_none() -> None:
    ours = ("BACKEND", "WORKER", "LAUNCHES", "EMULATED_DEVICES", "REQUIRE_MPS", "LENIENT_LIMITS")
    done = _run("ready(); print('ready')", "-Wignore::RuntimeWarning", **{f"PYMPSD_{name}": "" for name in ours})
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


@pytest.mark.parametrize(
    ("environment", "words", "warnings"),
    [
        ({"PYMPSD_EMULATED_DEVICES": "9xNOTHING"}, "NOTHING", 1),
        ({"CUDA_VISIBLE_DEVICES": "99"}, "CUDA_VISIBLE_DEVICES", 0),
    ],
)
def test_devices_that_do_not_exist_are_named(environment: dict[str, str], words: str, warnings: int) -> None:
    """A wrong setting is also printed, for programs that ignore cuInit's error; hiding devices is no mistake."""
    done = _run("cuda.cuInit(0); print(name(cuda.cuInit(0)), last_error())", **environment)
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE ")
    assert words in done.stdout
    assert done.stderr.count("a private emulated device cannot be used") == warnings


def test_devices_are_those_of_the_environment() -> None:
    program = "cuda.cuInit(0); print(cuda.cuDeviceGetCount()[1], cuda.cuDeviceGetName(32, 1)[1].rstrip(bytes(1)))"
    done = _run(program, PYMPSD_EMULATED_DEVICES="2xH200,1xA100", CUDA_VISIBLE_DEVICES="0,2")
    assert done.stdout == "2 b'NVIDIA A100-SXM4-80GB'\n"


def test_threads_initialise_once() -> None:
    program = """
    results = []
    threads = [threading.Thread(target=lambda: results.append(cuda.cuInit(0))) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print({name(result) for result in results})
    """
    done = _run(program)
    assert done.stdout == "{'CUDA_SUCCESS'}\n"
    assert done.stderr.count("PrivateExecutorWarning") == 1


FORK = """
ready()
reader, writer = os.pipe()
child = os.fork()
if not child:
    answers = [cuda.cuInit(0), cuda.cuDriverGetVersion(), cuda.cuDeviceGetCount(), cuda.cuMemAlloc(4),
               cuda.cuCtxGetCurrent(), cuda.cuCtxSynchronize(), cuda.cuStreamSynchronize(0),
               cuda.cuLaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)]
    said = {name(answer) for answer in answers}
    left = [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")]
    sockets = [fd for fd in left if "socket" in os.readlink(f"/proc/self/fd/{fd}")]
    os.write(writer, f"{said} {'forked' in last_error()} {cuda.cuGetErrorName(3)[1]} {sockets}".encode())
    sys.exit(0)
os.close(writer)
print(os.waitpid(child, 0)[1], os.fdopen(reader).read())
print(name(cuda.cuCtxSynchronize()), name(cuda.cuMemAlloc(4)), len(children()))
"""


def test_after_fork_calls_fail_in_the_child_and_work_in_the_parent() -> None:
    done = _run(FORK, "-Wignore::RuntimeWarning")
    child, parent = done.stdout.splitlines()
    assert child == "0 {'CUDA_ERROR_NOT_INITIALIZED'} True b'CUDA_ERROR_NOT_INITIALIZED' []"
    assert parent == "CUDA_SUCCESS CUDA_SUCCESS 1"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_process_that_forked_before_cuinit_is_like_any_other() -> None:
    program = """
    child = os.fork()
    if not child:
        ready()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    ready()
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert (done.stdout, done.stderr, done.returncode) == ("7\n", "", 0)


def test_after_the_end_calls_say_that_the_driver_is_shutting_down() -> None:
    done = _run(
        """
        import atexit, ctypes
        def late(): print([name(answer) for answer in (
            cuda.cuMemFree(address), cuda.cuMemGetInfo(), cuda.cuInit(0), cuda.cuCtxSynchronize(),
            cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, 0), cuda.cuDeviceGetCount())])
        atexit.register(late)
        address = ready()
        _, module = cuda.cuModuleLoadData(b".version 7.0\\n.target sm_70\\n.visible .entry k() { ret; }")
        _, kernel = cuda.cuModuleGetFunction(module, b"k")
        for _ in range(4): assert name(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, 0)) == "CUDA_SUCCESS"
        from pympsd_client._objects.process import process
        atexit.unregister(process.at_exit), atexit.register(process.at_exit)
        """
    )
    assert (done.returncode, done.stdout) == (0, str(["CUDA_ERROR_DEINITIALIZED"] * 6) + "\n"), done.stderr


@pytest.mark.long(but=["os.kill(os.getpid(), 9)", "sys.exit(3)"])
@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise ValueError", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_however_a_process_ends_its_executor_ends(end: str) -> None:
    done = _run(f"ready(); print(*children(), flush=True); {end}", "-Wignore::RuntimeWarning")
    (executor,) = map(int, done.stdout.split())
    try:
        pidfd = os.pidfd_open(executor)
    except ProcessLookupError:
        return
    try:
        assert _readable(pidfd)
    finally:
        os.close(pidfd)


def _readable(pidfd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(10_000))


def test_a_process_ends_though_its_kernel_does_not(tmp_path: Path) -> None:
    program = f"""
    address = ready()
    cuda.cuMemsetD32(address, 0, 1)
    module = cuda.cuModuleLoadData(open({str(Path(__file__).with_name("kernels.ptx"))!r}, "rb").read())[1]
    function = cuda.cuModuleGetFunction(module, b"wait_for")[1]
    print(name(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ((address,), (None,)), 0)))
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert (done.stdout, done.returncode, done.stderr) == ("CUDA_SUCCESS\n", 0, "")


def test_the_error_of_a_killed_executor_is_sticky() -> None:
    program = f"""
    ready()
    os.kill(children()[0], {int(signal.SIGKILL)})
    print(*(name(call()) for call in (cuda.cuCtxSynchronize, cuda.cuCtxSynchronize, lambda: cuda.cuMemAlloc(4))))
    print(last_error())
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    results, message = done.stdout.splitlines()
    assert set(results.split()) == {"CUDA_ERROR_MPS_RPC_FAILURE"}
    assert "end this process" in message
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_waiting_for_a_kernel() -> None:
    program = f"""
    import signal
    address = ready()
    cuda.cuMemsetD32(address, 0, 1)
    module = cuda.cuModuleLoadData(open({str(Path(__file__).with_name("kernels.ptx"))!r}, "rb").read())[1]
    function = cuda.cuModuleGetFunction(module, b"wait_for")[1]
    streams = [cuda.cuStreamCreate(1)[1] for _ in range(2)]
    cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, streams[0], ((address,), (None,)), 0)
    def interrupt(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 1)  # again: one just before the wait is heard by the next
        cuda.cuStreamSynchronize(streams[0])
    except KeyboardInterrupt:
        print("interrupted")
    print(name(cuda.cuStreamQuery(streams[0])))
    cuda.cuMemsetD32Async(address, 1, 1, streams[1])
    print(name(cuda.cuStreamSynchronize(streams[0])))
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert done.stdout.split() == ["interrupted", "CUDA_ERROR_NOT_READY", "CUDA_SUCCESS"], done.stderr


def test_the_executor_is_started_without_our_inheritable_descriptors_and_knocks_nowhere() -> None:
    program = """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    ready()
    executor = children()[0]
    links = []
    for fd in os.listdir(f"/proc/{executor}/fd"):
        try:
            links.append(os.readlink(f"/proc/{executor}/fd/{fd}"))
        except FileNotFoundError:
            continue  # one that it passed on to us, and closed meanwhile
    print(any("pipe:" in link and link == os.readlink(f"/proc/self/fd/{writer}") for link in links))
    print(links.count("/dev/null"), os.getsid(executor) == executor)
    print([one for one in open(f"/proc/{executor}/environ").read().split(chr(0)) if "PIPE_DIRECTORY" in one])
    """
    done = _run(program, "-Wignore::RuntimeWarning")
    assert done.stdout.splitlines() == ["False", "3 True", "['CUDA_MPS_PIPE_DIRECTORY=/dev/null']"], done.stderr
