"""Programs as they are: what they compute, what their children and their ends are like."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from processes import BIN, SECONDS, DaemonProcess

from tests.routing.conftest import RUN, Run

ADD = """
context()
function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(VECTOR_ADD)), b"vector_add"))
count = 1000
host = (ctypes.c_float * count)(*range(count))
result = (ctypes.c_float * count)()
a, b, c = (ok(cuda.cuMemAlloc(4 * count)) for _ in range(3))
ok(cuda.cuMemcpyHtoD(a, ctypes.addressof(host), 4 * count))
ok(cuda.cuMemcpyDtoD(b, a, 4 * count))
types = (None, None, None, ctypes.c_int)
"""
SHOW = """
ok(cuda.cuCtxSynchronize())
ok(cuda.cuMemcpyDtoH(ctypes.addressof(result), c, 4 * count))
print(result[1], result[999])
"""


def test_a_vector_addition(run: Run) -> None:
    launch = "ok(cuda.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, 0, ((a, b, c, count), types), 0))"
    assert run(ADD + launch + SHOW).stdout == "2.0 1998.0\n"


def test_a_program_whose_folder_has_a_pympsd_of_its_own(run: Run, tmp_path: Path) -> None:
    """As in a checkout, whose C parts are not built: the installed one is used, as a whole."""
    (tmp_path / "pympsd" / "channel").mkdir(parents=True)
    for folder in ("pympsd", "pympsd/channel"):
        (tmp_path / folder / "__init__.py").touch()
    assert run("context(); print(ok(cuda.cuDeviceGetCount()))").stdout == "1\n"


def test_repeated_launches_take_new_parameters(run: Run) -> None:
    launches = """
for given in (0, 0, 0, 1, 2, count):  # the first ones make a plan
    ok(cuda.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, 0, ((a, b, c, given), types), 0))
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(result), c, 4 * count))
    print(sum(result[:4]))
"""
    # What is not written yet is 0.
    begun = "ok(cuda.cuMemsetD8(c, 0, 4 * count))\n"
    assert run(ADD + begun + launches).stdout.split() == ["0.0", "0.0", "0.0", "0.0", "2.0", "12.0"]


def test_a_launch_by_configuration(run: Run) -> None:
    launch = """
config = cuda.CUlaunchConfig()
config.gridDimX, config.blockDimX = 8, 128
config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
ok(cuda.cuLaunchKernelEx(config, function, ((a, b, c, count), types), 0))
attribute = cuda.CUlaunchAttribute()
attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
attribute.value.cooperative = 1
config.attrs, config.numAttrs = [attribute], 1
ok(cuda.cuLaunchKernelEx(config, function, ((a, c, c, count), types), 0))
"""
    assert run(ADD + launch + SHOW).stdout == "3.0 2997.0\n"


@pytest.mark.parametrize("option", ["-I", "-s", "-B"])
def test_options_of_the_interpreter(run: Run, option: str) -> None:
    assert run("context(); print(ok(cuda.cuDeviceGetCount()) > 0)", option).stdout == "True\n"


def test_children_are_routed_too(run: Run) -> None:
    child = """
import subprocess
if len(sys.argv) == 1:
    print(subprocess.run([sys.executable, "-I", __file__, "child"], capture_output=True, text=True).stdout, end="")
else:
    context()
    print(ok(cuda.cuDeviceGetName(64, 0)).rstrip(bytes(1)).decode())
"""
    assert "NVIDIA" in run(child).stdout


def test_a_child_of_multiprocessing(run: Run) -> None:
    child = """
import multiprocessing
def work(queue):
    context()
    queue.put(int(ok(cuda.cuMemAlloc(16))) != 0)
if __name__ == "__main__":
    start = multiprocessing.get_context("spawn")
    queue = start.Queue()
    process = start.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""
    assert run(child).stdout == "True\n"


@pytest.mark.parametrize("arguments", [["-m", "program", "one"], ["python3", "program.py", "one"]])
def test_a_module_and_a_command(daemon: DaemonProcess, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\nfrom cuda.bindings import driver\nprint(int(driver.cuInit(0)[0]), *sys.argv[1:])\n"
    )
    done = subprocess.run(
        [RUN, *arguments], env={"PATH": "/usr/bin:/bin", **daemon.environment}, cwd=tmp_path,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("0 one\n", "", 0)


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0)])
def test_how_it_is_called(arguments: list[str], status: int) -> None:
    done = subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == status
    assert "usage: pympsd-run FILE.py" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "meant"), [("--modul", "-m"), ("--cmd", "-c"), ("--hepl", "--help"), ("-H", "--help")]
)
def test_a_mistyped_option_is_bad_usage(option: str, meant: str) -> None:
    done = subprocess.run([RUN, option, "x.py"], capture_output=True, text=True, timeout=SECONDS, check=False)
    output = f"pympsd-run: there is no option {option}; did you mean {meant}?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", output)


def test_an_unknown_option_is_bad_usage() -> None:
    done = subprocess.run([RUN, "--nonsense"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("pympsd-run: there is no option --nonsense: ")


def test_help_that_cannot_be_printed() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([RUN, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert done.returncode == 74
    assert "error" in done.stderr
    assert "exec" not in done.stderr


def test_calls_at_the_end_of_the_interpreter(run: Run) -> None:
    late = """
import atexit, builtins
class Holder:
    def __init__(self, context):
        self.put, self.memory = os.write, ok(cuda.cuMemAlloc(16))
        self.stream = ok(cuda.cuStreamCreate(0))
        self.calls = [
            (cuda.cuMemGetInfo,), (cuda.cuCtxGetCurrent,), (cuda.cuCtxPushCurrent, context),
            (cuda.cuMemFreeAsync, self.memory, self.stream), (cuda.cuCtxPopCurrent,),
            (cuda.cuStreamDestroy, self.stream), (cuda.cuMemAlloc, 16), (cuda.cuCtxSynchronize,),
            (cuda.cuDeviceGetDefaultMemPool, 0), (cuda.cuMemPoolTrimTo, 0, 0),
            (cuda.cuCtxDetach, context),
        ]
        self.error, self.texts = cuda.CUresult.CUDA_ERROR_DEINITIALIZED, (cuda.cuGetErrorName, cuda.cuGetErrorString)
    def __del__(self):
        results = bytes(48 + int(call(*given)[0]) for call, *given in self.calls)
        self.put(1, b"destructor %s %s: %s\\n" % (results, *(text(self.error)[1] for text in self.texts)))
atexit.register(lambda: print("atexit", int(cuda.cuMemAlloc(16)[0]), flush=True))
builtins.kept = Holder(context())
"""
    # What frees succeeds, as with a driver (PyCUDA detaches), and what cuda.core and Taichi call before; other calls
    # are DEINITIALIZED.
    done = run(late)
    assert (done.stdout, done.stderr) == (
        "atexit 0\ndestructor 40000040000 CUDA_ERROR_DEINITIALIZED: driver shutting down\n",
        "",
    )


def test_a_program_that_closes_all_descriptors_ends_without_a_report(run: Run) -> None:
    done = run("context(); os.closerange(3, 1024); print(int(cuda.cuCtxSynchronize()[0]))")
    assert (done.stdout, done.stderr) == ("806\n", "")


def test_a_thread_may_continue_to_call_during_the_exit(run: Run) -> None:
    thread = """
import threading
made = context()
def call():
    cuda.cuCtxSetCurrent(made)
    while True:
        cuda.cuMemGetInfo()
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
ok(cuda.cuMemAlloc(16))
"""
    for _ in range(3):
        assert run(thread).stderr == ""


def test_without_the_variable_nothing_is_routed(daemon: DaemonProcess) -> None:
    program = "import sys; import cuda.bindings.driver; print('pympsd_client' in sys.modules, len(sys.meta_path))"
    environment = {**os.environ, **daemon.environment}
    environment.pop("PYMPSD_ROUTING", None)
    plain = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert plain.stdout.startswith("False ")


def test_too_late_is_a_clear_error(run: Run) -> None:
    late = """
import pympsd_client.routing.hook as hook
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != hook.__name__]
try:
    hook.install()
except RuntimeError as error:
    print(error)
"""
    output = run(late).stdout
    assert output.startswith("cuda.bindings.cydriver was imported before pympsd could replace its function pointers")
    assert "pympsd-run" in output


def test_where_the_daemon_leads_the_drivers_server_nothing_is_routed(run: Run, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        program = "print('pympsd_client.routing.pointers' in sys.modules)"
        assert run(program, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path)).stdout == "False\n"
        wrong = {"CUDA_MPS_CLIENT_PRIORITY": "high", "PYMPSD_EXPLAIN": "1"}
        done = run(program, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path), **wrong)
        problem = "pympsd: CUDA_MPS_CLIENT_PRIORITY must be 0 (normal) or 1 (below normal), not 'high'\n"
        assert (done.stdout, done.stderr) == ("False\n", problem), "the driver ignores it and reports nothing"


def test_a_daemon_that_takes_no_connection_holds_up_no_import(run: Run, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as opened:
        listener.bind(str(tmp_path / "control"))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):  # until there is no room for one more
            while True:
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting.setblocking(False)
                waiting.connect(str(tmp_path / "control"))
        program = "print('pympsd_client.routing.pointers' in sys.modules)"
        assert run(program, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path)).stdout == "False\n"


def test_a_program_that_requires_a_daemon_finds_none(run: Run, tmp_path: Path) -> None:
    program = "print(int(cuda.cuInit(0)[0]))"
    completed = run(program, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path), PYMPSD_REQUIRE_MPS="1")
    assert int(completed.stdout) == 805  # MPS_CONNECTION_FAILED


def test_ctrl_c_ends_a_program_that_waits(daemon: DaemonProcess, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\nfrom cuda.bindings import driver as cuda\ncuda.cuInit(0)\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    cuda.cuDeviceGetCount()\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    done = subprocess.run(
        [str(BIN / "pympsd-run"), str(program)], env={"PATH": "/usr/bin:/bin", **daemon.environment},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted\n"


def test_the_installation_brings_the_file_that_python_reads() -> None:
    # Not by the package's metadata: in a checkout those of its own build folder come first.
    assert (Path(sysconfig.get_paths()["purelib"]) / "pympsd-routing.pth").is_file()


def test_settings_of_core_dumps(run: Run) -> None:
    program = """
ok(cuda.cuInit(0))
setting = cuda.CUcoredumpSettings
ok(cuda.cuCoredumpSetAttributeGlobal(setting.CU_COREDUMP_FILE, b"a file"))
ok(cuda.cuCoredumpSetAttributeGlobal(setting.CU_COREDUMP_LIGHTWEIGHT, True))
for one in (setting.CU_COREDUMP_FILE, setting.CU_COREDUMP_LIGHTWEIGHT, setting.CU_COREDUMP_ENABLE_ON_EXCEPTION):
    print(ok(cuda.cuCoredumpGetAttributeGlobal(one)))
print(int(cuda.cuCoredumpGetAttribute(setting.CU_COREDUMP_FILE)[0]))
"""
    assert run(program).stdout.splitlines() == ["b'a file'", "True", "False", "201"]
