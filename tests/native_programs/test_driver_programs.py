"""Compiled programs of the driver API: they run on the emulated device, as clients of the daemon."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import SECONDS, DaemonProcess

from tests.native_programs.conftest import LIBRARIES, SOURCES, Compile, read_table

STATIC_RUNTIME = "has a static CUDA runtime, which needs undocumented parts of NVIDIA's driver"
USER = 10001
Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def run(environment: dict[str, str]) -> Callable[..., Ran]:
    """Run a command, and return what it wrote."""

    def run(*command: object, **changes: str) -> Ran:
        return subprocess.run(
            [str(word) for word in command],
            env={**environment, **changes}, cwd="/",  # a Python imports from its directory
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    return run


def test_a_program_computes_and_is_a_client_of_the_daemon(
    compile_program: Compile, daemon: DaemonProcess, environment: dict[str, str]
) -> None:
    program = compile_program("twice")
    with subprocess.Popen(
        [str(program)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1 NVIDIA H200 1\n"
        clients = daemon.run_command("ps")
        assert f"{running.pid} " in clients
        assert "twice" in clients
        running.communicate("\n", timeout=SECONDS)
    assert running.returncode == 0


def test_initialization_imports_only_what_connects_to_a_device(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    """A program waits for these imports: a module of memory, code or graphs is imported by its first function."""
    program = compile_program("privileged", "libcuda.so.1", "libnvidia-ml.so.1")
    ran = run(program, PYTHONPROFILEIMPORTTIME="1")
    assert ran.stdout == "0\n0 Success\n", ran.stderr
    imported = re.findall(r"^import time:.*\| +(\S+)$", ran.stderr, re.MULTILINE)
    unneeded = re.compile(
        r"(cuda|numpy|structlog|trio|pympsd_client\.(_graphs|_api\.(entry_point|memory)|"
        r"_objects\.(arrays|code|memory|pools)|_connect\.private_executor))(\.|$)"
    )
    assert [module for module in imported if unneeded.match(module)] == []
    own = [module for module in imported if module.startswith("pympsd")]
    assert 50 < len(own) < 85, own  # 72 when this was written


def test_the_output_of_kernels_comes_after_what_the_program_printed_before(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    ran = run(compile_program("prints"))
    assert (ran.stdout, ran.returncode) == ("before\ndevice\nafter\n", 0), ran.stderr


def test_names_of_all_versions_wrong_arguments_and_twenty_threads(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    ran = run(compile_program("contract"))
    assert (ran.stdout, ran.returncode) == ("as documented\n", 0), ran.stderr
    # Once each, though one of them is called twice.
    assert [line.split()[1] for line in ran.stderr.splitlines()] == ["cuMemAlloc:", "cuTexRefCreate:"]


def test_a_child_after_fork_gets_an_error_and_its_parent_continues(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    ran = run(compile_program("ends"), "fork")
    assert ran.stdout.splitlines() == ["destructor: 0", "child 42, parent 7", "destructor: 0"], ran.stderr


SITE = """
import os
if "STARTED" in os.environ:
    started, go = int(os.environ.pop("STARTED")), int(os.environ.pop("GO"))
    os.write(started, b"x")
    os.read(go, 1)
"""


def test_a_child_of_a_fork_while_python_starts_gets_an_error(
    compile_program: Compile, run: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    ran = run(compile_program("forks"), PYTHONPATH=str(tmp_path))
    assert ran.stdout == "child 42, parent 0\n", ran.stderr
    assert ran.stderr == (
        "pympsd: this program cannot use CUDA: another thread was starting Python when this process was forked; "
        "start it again\n"
    )


@pytest.mark.parametrize(
    ("way", "results", "sentence"),
    [("runs", "0 0 1\n", ""), ("waits", "304 304 0\n", "which does not run yet; call CUDA after Py_Initialize\n")],
)
def test_a_python_that_the_program_has_loaded_for_itself_only(
    way: str, results: str, sentence: str, compile_program: Compile, run: Callable[..., Ran]
) -> None:
    library = f"libpython3.{sys.version_info.minor}.so.1.0"
    neighbour = Path(sys.base_prefix, "lib", library)
    ran = run(compile_program("loaded_python"), neighbour if neighbour.exists() else library, way)
    assert ran.stdout == results, ran.stderr
    assert ran.stderr.endswith(sentence)
    assert ran.stderr.count("\n") == (way == "waits")


def test_a_statically_linked_program_that_opens_the_libraries_gets_an_error(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    compiler, program = os.environ.get("CC", "cc"), tmp_path / "opens"
    run(compiler, "-static", "-o", program, SOURCES / "opens.c").check_returncode()
    ran = run(program, "libcuda.so.1", "cuInit", "libcudart.so.13", "cudaFree", "libnvidia-ml.so.1", "nvmlInit_v2")
    assert ran.stdout == "304\n304\n0\n", ran.stderr
    assert ran.stderr == (
        "pympsd: this program cannot use CUDA: it is statically linked; link it without -static to use libcuda.so.1\n"
    )


@pytest.mark.parametrize(
    ("is_library", "sentence"),
    [
        (False, "this program {has}: link it with nvcc -cudart shared"),
        (True, "libmath.so.13 {has}: use it with the driver's own server (backend vendor)"),
    ],
    ids=["program", "library"],
)
def test_a_static_runtime_is_reported_with_the_file_that_has_it(
    is_library: bool, sentence: str, compile_program: Compile, run: Callable[..., Ran], tmp_path: Path
) -> None:
    source = tmp_path / "runtime.c"
    source.write_text(
        "#include <stdio.h>\n"
        "int cuInit(unsigned flags), cuGetExportTable(const void **table, const void *id);\n"
        'int request(void) { const void *table; cuInit(0); return cuGetExportTable(&table, "0123456789abcdef"); }\n'
        + ("" if is_library else 'int main(void) { printf("%d\\n", request()); return 0; }\n')
    )
    file = tmp_path / ("libmath.so.13" if is_library else "math")
    options = ["-shared", "-fPIC"] if is_library else []
    compiler = os.environ.get("CC", "cc")
    run(compiler, *options, "-o", file, source, f"-L{LIBRARIES}", "-l:libcuda.so.1").check_returncode()
    ran = run(compile_program("opens"), file, "request") if is_library else run(file)
    assert ran.stdout == "801\n", ran.stderr
    assert ran.stderr == f"pympsd: {sentence.format(has=STATIC_RUNTIME)}\n"


@pytest.mark.long("it waits for ten seconds")
def test_a_thread_that_cannot_have_the_gil_gets_an_error(compile_program: Compile, run: Callable[..., Ran]) -> None:
    library = f"libpython3.{sys.version_info.minor}.so.1.0"
    neighbour = Path(sys.base_prefix, "lib", library)
    ran = run(compile_program("loaded_python"), neighbour if neighbour.exists() else library, "holds")
    assert ran.stdout == "304 304 0\n", ran.stderr
    assert ran.stderr == (
        "pympsd: this program cannot use CUDA (libcuda.so.1): a thread called it while another one kept Python's "
        "lock (the GIL) for 10 s; release the GIL while you wait for a thread that uses CUDA\n"
    )


def test_a_python_that_is_too_old_is_refused_with_its_version(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    ran = run(compile_program("old_python"))
    assert ran.stdout == "304\n"
    assert ran.stderr == (
        "pympsd: this program cannot use CUDA: its Python is 3.10.13, and pympsd needs 3.11 or newer\n"
    )


def test_a_copied_library_is_not_taken_for_an_installed_one(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pympsd-test-"))
    shutil.copy(LIBRARIES / "libcuda.so.1", folder)
    ran = run(compile_program("ends"), LD_LIBRARY_PATH=str(folder), PYMPSD_PYTHON="/nowhere/python3")
    shutil.rmtree(folder)
    assert ran.stdout == "304\n"
    assert ran.stderr.startswith(
        "pympsd: this program cannot use CUDA: no interpreter of Python is found for the packages in an installation "
        "of pympsd, to which this library does not belong"
    )


def test_exit_handlers_use_the_device_if_they_are_younger_than_its_use(
    compile_program: Compile, run: Callable[..., Ran]
) -> None:
    """Older ones get DEINITIALIZED, as recorded on an H200; what frees succeeds."""
    ran = run(compile_program("ends"), "exit")
    handlers = ["registered after cuInit: 0", "registered before cuInit: 4 0", "destructor: 0"]
    assert ran.stdout.splitlines() == [*["hello"] * 3, *handlers], ran.stderr
    assert ran.returncode == 0


def test_a_signal_ends_the_program(compile_program: Compile, environment: dict[str, str]) -> None:
    command = [str(compile_program("ends")), "signal"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == -signal.SIGINT


def test_a_program_that_leaves_little_to_its_libraries(
    compile_program: Compile, run: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = run(compile_program("confined"), tmp_path / "messages")
    small = "its stack of 16 KB is too small; start it with 128 KB or more (pthread_attr_setstacksize)"
    computed = ["16 KB: 304", "16 KB: 304", "128 KB: 0", "16 KB: 304", "interrupted 1"]
    assert ran.stdout.splitlines() == [*computed, f"Driver Not Loaded: a thread: {small}", "16 KB: 9"]
    assert ran.returncode == 0
    assert (tmp_path / "messages").read_text() == f"pympsd: a thread cannot use CUDA: {small}\n"


def test_a_program_that_only_initializes(compile_program: Compile, run: Callable[..., Ran]) -> None:
    ran = run(compile_program("ends"))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("0\n", "", 0)


def test_a_program_keeps_its_locale(compile_program: Compile, run: Callable[..., Ran]) -> None:
    ran = run(compile_program("ends"), "locale", LC_ALL="C.UTF-8")  # which Python uses, and the program does not
    assert (ran.stdout, ran.stderr) == ("0\nlocale C\n", "")


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/nowhere/python3", "no interpreter of Python is found"),
        ("/bin/sh", "libpython of /bin/sh cannot be loaded (it is not called python3.X)"),
    ],
)
def test_one_sentence_where_there_is_no_python(
    python: str, sentence: str, compile_program: Compile, run: Callable[..., Ran]
) -> None:
    ran = run(compile_program("ends"), PYMPSD_PYTHON=python, PATH="")
    assert ran.stdout == "304\n"  # CUDA_ERROR_OPERATING_SYSTEM
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_no_python_is_started_with_the_rights_of_a_file(tmp_path: Path) -> None:
    program = Path(tempfile.mkdtemp(prefix="pympsd-test-")) / "privileged"
    libraries = [f"-l:{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    options = [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}", *libraries]  # the loader ignores LD_LIBRARY_PATH
    subprocess.run(["cc", "-o", program, SOURCES / "privileged.c", *options], check=True, timeout=SECONDS)
    os.chown(program, USER, -1)
    program.chmod(0o4755)
    hostile = tmp_path / "python3"
    hostile.write_text("#!/bin/sh\necho hostile >&2\n")
    hostile.chmod(0o755)
    environment = {"PYMPSD_PYTHON": str(hostile), "PATH": str(tmp_path), "PYMPSD_BACKEND": "emulated"}
    ran = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=SECONDS)
    shutil.rmtree(program.parent)
    cuda, nvml = ran.stdout.splitlines()
    assert (cuda, nvml.split()[0]) == ("304", "9")
    assert nvml.endswith("; and the program runs with the rights of its file")
    assert ran.stderr == (
        "pympsd: this program cannot use CUDA: it runs with the rights of its file (set-user-ID or file "
        "capabilities); pympsd starts no Python with them\n"
    )


IN_PYTHON = """
import ctypes, sys
if sys.argv[1:]: import cuda.bindings.driver  # before: nobody has replaced its pointers
driver = ctypes.CDLL("libcuda.so")
count, context = ctypes.c_int(), ctypes.c_void_p()
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value)
print(driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0), driver.cuCtxSynchronize())
"""


@pytest.mark.parametrize("arguments", [(), ("bindings",)], ids=["alone", "next to cuda.bindings"])
def test_a_python_that_loads_the_library_itself(arguments: tuple[str, ...], run: Callable[..., Ran]) -> None:
    ran = run(sys.executable, "-c", IN_PYTHON, *arguments)
    assert ran.stdout.splitlines() == ["0 0 1", "0 0"], ran.stderr


EXPORTED = """
import ctypes, sys
library = ctypes.CDLL("libcuda.so.1")
print([name for name in sys.argv[1:] if not hasattr(library, name)])
"""


def test_every_documented_function_is_exported(run: Callable[..., Ran]) -> None:
    names = read_table("libcuda")
    assert len(names) > 660
    assert "cuGraphicsGLRegisterBuffer" in names
    ran = run(sys.executable, "-c", EXPORTED, *names)
    assert ran.stdout == "[]\n", ran.stderr
