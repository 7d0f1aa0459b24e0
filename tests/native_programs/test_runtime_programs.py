"""Compiled programs of the CUDA runtime: what a compiler of CUDA C++ registers, and every way to launch it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SECONDS

from tests.native_programs import fat_binaries
from tests.native_programs.conftest import NATIVE, SOURCES, Compile, read_table


def _nvcc() -> str | None:
    """Return a compiler that works; .ci/run hides the toolkit, but not a link to it."""
    path = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    works = path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    return path if works else None


NVCC = _nvcc()


def _run(program: Path, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(program), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )  # fmt: skip


@pytest.mark.parametrize(
    ("library", "image", "kind"),
    [("libcudart.so.13", "plain", "whole"), ("libcudart.so.12", "compress", "linked")],
    ids=["13", "12"],
)
def test_a_registered_kernel_is_launched_in_every_way(
    library: str, image: str, kind: str, compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "fat"
    file.write_bytes(getattr(fat_binaries, image)())
    done = _run(compile_program("registered", library), str(file), kind, environment=environment)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "cudaGetExportTable" in done.stderr  # the one function that the program calls and pympsd lacks
    assert len(done.stderr.splitlines()) == 1


AFTER_A_FAULT = """\
cudaDeviceSynchronize() 700
cudaMalloc(&address, 4) 700
cudaDeviceReset() 0
cudaMalloc(&address, 4) 46
cudaDeviceReset() 0
cudaMalloc(&address, 4) 46
cudaSetDevice(0) 46
cudaFree(0) 46
cudaDeviceSynchronize() 46
cudaPeekAtLastError() 46
cudaDeviceSynchronize() 46
cuDevicePrimaryCtxGetState(0, &flags, &active) 0
active 0
cuDevicePrimaryCtxReset(0) 0
cuDevicePrimaryCtxRetain(&context, 0) 700
cudaMalloc(&address, 4) 46
"""
"""Recorded: H200, driver 580.159, CUDA 13.0, the same with and without MPS."""


@pytest.mark.parametrize("has_daemon", [True, False], ids=["MPS", "alone"])
def test_a_fault_is_final_for_a_process(
    has_daemon: bool, compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "fat"
    file.write_bytes(fat_binaries.plain())
    if not has_daemon:
        environment = environment | {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    done = _run(compile_program("registered", "libcudart.so.13"), str(file), "faulted", environment=environment)
    assert (done.returncode, done.stdout) == (0, AFTER_A_FAULT), done.stderr


@pytest.fixture(scope="module")
def with_driver(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine with a driver and without a daemon."""
    folder = tmp_path_factory.mktemp("driver")
    target = str(folder / "libcuda.so.1")
    compiler = ["cc", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", target, "-"]
    driver = "int cuInit(unsigned flags) { return flags; } int cuGetExportTable(void) { return 500; }"
    subprocess.run(compiler, input=driver, text=True, check=True, timeout=SECONDS)
    result = environment | {
        "LD_LIBRARY_PATH": f"{environment['LD_LIBRARY_PATH']}:{folder}",
        "CUDA_MPS_PIPE_DIRECTORY": str(folder),
    }
    for name in ("PYMPSD_BACKEND", "PYMPSD_EMULATED_DEVICES", "PYMPSD_REQUIRE_MPS"):
        result.pop(name, None)
    return result


def test_the_runtime_of_pympsd_is_refused_by_name_where_the_program_would_run_natively(
    compile_program: Compile, with_driver: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "fat"
    file.write_bytes(fat_binaries.plain())
    program = compile_program("registered", "libcudart.so.13")
    done = _run(program, str(file), "whole", environment=with_driver | {"PYMPSD_EXPLAIN": "1"})
    assert done.returncode != 0
    assert " 805" in done.stdout + done.stderr
    assert "start a daemon (pympsd -d), or the program without pympsd-run" in done.stderr


@pytest.mark.long(but=["{'PYMPSD_EMULATED_DEVICES': '2xH200'}"])
@pytest.mark.parametrize("setting", [{"PYMPSD_BACKEND": "emulated"}, {"PYMPSD_EMULATED_DEVICES": "2xH200"}], ids=str)
def test_the_emulated_gpu_can_be_selected_on_a_machine_with_a_driver(
    setting: dict[str, str], compile_program: Compile, with_driver: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "fat"
    file.write_bytes(fat_binaries.plain())
    done = _run(
        compile_program("registered", "libcudart.so.13"), str(file), "whole", environment=with_driver | setting
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "running on a private emulated device" in done.stderr


def test_a_program_without_ptx_is_refused_with_the_flag_that_adds_it(
    compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "fat"
    file.write_bytes(fat_binaries.without_ptx())
    program = compile_program("registered", "libcudart.so.13")
    done = _run(program, str(file), "refused", environment=environment)
    assert (done.returncode, done.stdout) == (0, "cudaErrorNoKernelImageForDevice\n")
    assert done.stderr.count("nvcc -gencode arch=compute_90,code=compute_90") == 1


def test_a_program_whose_kernels_launch_kernels_is_refused_by_its_first_call(
    compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    """Many programs do not look at the results of launches: they would report success."""
    file = tmp_path / "fat"
    file.write_bytes(fat_binaries.nested())
    done = _run(compile_program("registered", "libcudart.so.13"), str(file), "nested", environment=environment)
    assert (done.returncode, done.stdout) == (0, "cudaErrorNotSupported\n"), done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("pympsd: cudaSetDevice: CUDA_ERROR_NOT_SUPPORTED: kernels of the program launch kernels")


def test_functions_that_cuda_13_has_changed(compile_program: Compile, environment: dict[str, str]) -> None:
    done = _run(compile_program("version_12", "libcudart.so.12"), environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("version", ["12", "13"])
def test_no_function_crashes_with_zeros_for_its_arguments(
    version: str, compile_program: Compile, environment: dict[str, str]
) -> None:
    names = [name for name in read_table("cudart", version) if name.startswith("cuda")]
    others = ("cudaGetErrorName", "cudaGetErrorString", "cudaCreateChannelDesc")  # they return no error
    done = subprocess.run(
        [str(compile_program("nulls")), f"libcudart.so.{version}"],
        env=environment | {"PYMPSD_EXPLAIN": "0"}, input="\n".join(name for name in names if name not in others),
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{len(set(names) - set(others))} 0\n"), done.stderr


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed: its packages have 270 MB")
def test_what_a_compiler_makes_of_cuda_cpp(environment: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "features"
    options = ["-std=c++17", "-cudart", "shared", "-gencode", "arch=compute_90,code=compute_90", "-w"]
    subprocess.run(
        [str(NVCC), *options, "-o", str(program), str(SOURCES / "features.cu")], check=True, timeout=10 * SECONDS
    )
    done = _run(program, environment=environment)
    assert done.stdout.splitlines() == [
        "cooperative 4", "cluster 0 1", "attributes 4", "clusters 1 8", "texture 1 7", "template 47",
        "occupancy 1 1024", "graph 15 1 16", "threads 0", "managed 46",
    ], done.stderr  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_libraries_register_while_another_thread_launches(tmp_path: Path) -> None:
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Werror"]
    driver = ["-shared", "-fPIC", str(SOURCES / "fake_libcuda.c"), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*compiler, *driver, "-Wl,-soname,libcuda.so.1"], check=True, timeout=SECONDS)
    sources = [SOURCES / "registry.c", *sorted((NATIVE / "cudart").glob("*.c"))]
    options = ["-g", "-fsanitize=address,undefined", "-DCUDA_MAJOR=13", f"-I{NATIVE}", f"-L{tmp_path}"]
    libraries = ["-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-pthread", "-ldl"]
    program = tmp_path / "registry"
    subprocess.run(
        [*compiler, *options, *map(str, sources), "-o", str(program), *libraries], check=True, timeout=SECONDS
    )
    # What a reader may still use is never freed.
    done = _run(program, environment={"ASAN_OPTIONS": "detect_leaks=0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


FIRST_CALLS = """
import ctypes, sys, threading
runtime = ctypes.PyDLL("libcudart.so.13")  # its calls hold the GIL, as those of an extension module may
attaching, calling, results = threading.Event(), threading.Event(), []

def stop_in_import(event, arguments):
    if event == "import" and arguments[0] == "pympsd_client.routing.libraries" and not attaching.is_set():
        attaching.set()
        calling.wait()

def call():
    attaching.wait()
    calling.set()
    results.append(runtime.cudaFree(None))

sys.addaudithook(stop_in_import)
sys.setswitchinterval(60)  # the other thread keeps the GIL until its call releases it
other = threading.Thread(target=call)
other.start()
results.append(runtime.cudaFree(None))
other.join()
print(results)
"""


def test_first_calls_of_two_threads_with_the_gil(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", FIRST_CALLS]
    done = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")


def test_without_the_library_next_to_it_calls_fail(
    compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    library = Path(environment["LD_LIBRARY_PATH"]) / "libcudart.so.12"
    (tmp_path / library.name).write_bytes(library.read_bytes())
    program = compile_program("version_12", library.name)
    done = _run(program, environment=environment | {"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "start it with pympsd-run" in done.stderr
    assert "cudaErrorOperatingSystem" in done.stderr
