"""Compiled kernels on disk: the next process runs them immediately, and only the user's own files are executed."""

from __future__ import annotations

import errno
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from processes import SECONDS, children_of, wait_until

from pympsd.vocabulary.variables import BadSetting, read
from pympsd_server.ptx.compiled_tier.batches import selection
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.compilation import compiler_process, kernel_cache, machine_code
from tests.emulated.harness import HEADER, Device, Never, batches, three

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
SUM = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %n; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %i, 0; mov.u32 %n, PLUS;
AGAIN: add.u32 %n, %n, %i; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 100; @%q bra AGAIN;
st.global.u32 [%a], %n; ret; }"""
KINDS = """.global .u32 g = 7;
.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %v; .reg .b64 %a; .reg .pred %q; .shared .b32 s[64]; .reg .b32 %s; ld.param.u64 %a, [p];
mov.u32 %i, %tid.x; mov.u32 %s, s; mad.lo.u32 %s, %i, 4, %s; st.shared.u32 [%s], %i; setp.lt.u32 %q, %i, 40;
bar.red.popc.u32 %v, 0, %q; vadd4.u32.u32.u32.add %v, %i, 0, %v; ld.shared.u32 %i, [%s]; add.u32 %v, %v, %i;
ld.global.u32 %i, [g]; mul.lo.u32 %v, %v, %i; setp.ne.u32 %q, %v, 1162; @%q exit; st.global.u32 [%a], %v; ret; }"""
"""What a stored kernel has to know: a variable, a barrier with a result, an instruction of the NumPy tier."""
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user, which nobody has made yet."""
    monkeypatch.setenv("PYMPSD_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    kernel_cache.report.cache_clear()
    monkeypatch.setattr(selection, "report", kernel_cache.report)  # in these tests the compiler may fail
    return tmp_path / str(os.geteuid())


def text(plus: int = 0) -> str:
    return HEADER + SUM.replace("PLUS", str(plus))


def is_compiled(ptx: str, expected: int) -> bool:
    """Launch a kernel that nobody has launched in this process; return whether its first batch was compiled."""
    device = Device(1 << 20)
    address = device.put(np.zeros(1, "u4"))
    (batch,) = batches(device.load(ptx), "k", three(1), three(64), (address,))
    assert batch.step(SECONDS, Never())
    assert int(device.get(address, np.zeros(1, "u4"))[0]) == expected
    return isinstance(batch, CompiledBatch)


def compile_now(plus: int = 0) -> Path:
    """Have a kernel compiled; return its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMPSD_TIER", "compiled")
        before = files()
        assert is_compiled(text(plus), 4950 + plus)
        (new,) = files() - before
    return new


def files() -> set[Path]:
    return set(Path(os.environ["PYMPSD_KERNEL_CACHE"]).glob(f"{os.geteuid()}/*"))


PROGRAM = """
import resource, sys
sys.path += sys.argv[2:]  # behind the installed packages, which have the parts in C
from tests.emulated import test_kernel_cache as own
what = sys.argv[1]
if what == "full":
    store = own.kernel_cache.store
    def store_on_a_full_disk(*arguments):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        store(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    own.kernel_cache.store = store_on_a_full_disk
if what == "killed":
    print("begins", flush=True)
for ptx, expected in ((own.text(), 4950), (own.text(1), 4951), (own.HEADER + own.KINDS, 1162)):
    assert own.is_compiled(ptx, expected), ptx
assert what != "found" or "llvmlite.binding" not in sys.modules
"""


def start(what: str, directory: Path, *within: str) -> subprocess.Popen[str]:
    """Start a process that compiles three kernels; `within`: a command that starts it."""
    command = [*within, sys.executable, "-c", PROGRAM, what, ROOT, f"{ROOT}/tests/support"]
    return subprocess.Popen(
        command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYMPSD_TIER": "compiled", "PYMPSD_KERNEL_CACHE": str(directory)},
    )  # fmt: skip


def run(what: str, directory: Path, *within: str) -> str:
    """Let a process compile three kernels; return what it reports."""
    process = start(what, directory, *within)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    return errors


@pytest.mark.long
def test_kernels_that_another_process_has_compiled_run_compiled_immediately(folder: Path) -> None:
    assert not is_compiled(text(), 4950)
    assert run("", folder.parent) == ""
    assert is_compiled(text(), 4950)
    assert is_compiled(HEADER + KINDS, 1162)
    assert not is_compiled(text(2), 4952)
    assert (folder.stat().st_mode & 0o777, {file.stat().st_mode & 0o777 for file in files()}) == (0o700, {0o600})


@pytest.mark.long
def test_files_have_nothing_of_the_process_that_wrote_them(folder: Path, tmp_path: Path) -> None:
    """No address above all: another process has others."""
    run("", tmp_path)
    other = tmp_path / "other"
    run("", other)
    written = {file.name: file.read_bytes() for file in files()}
    assert len(written) == 3
    assert {file.name: file.read_bytes() for file in (other / folder.name).iterdir()} == written


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"P" + data[1:],
        lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    ],
)
def test_a_damaged_file_is_not_loaded_and_is_replaced(damage: Callable[[bytes], bytes]) -> None:
    file = compile_now()
    good = file.read_bytes()
    file.write_bytes(damage(good))
    assert not is_compiled(text(), 4950)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMPSD_TIER", "compiled")
        assert is_compiled(text(), 4950)
    assert file.read_bytes() == good


def test_the_file_of_another_kernel_is_not_loaded() -> None:
    file, other = compile_now(), compile_now(1)
    file.write_bytes(other.read_bytes())
    assert not is_compiled(text(), 4950)
    assert is_compiled(text(1), 4951)


def test_code_for_another_processor_or_by_another_llvm_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_now()
    for function in ("_processor", "_llvm_version"):
        with monkeypatch.context() as patch:
            patch.setattr(machine_code, function, lambda: "another")
            assert not is_compiled(text(), 4950)
    assert is_compiled(text(), 4950)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM loads the code of other processors")
def test_a_kernel_that_is_found_runs_without_llvm(folder: Path) -> None:
    run("", folder.parent)
    assert run("found", folder.parent) == ""


def test_what_the_own_loader_does_not_support_llvm_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_now()
    code, addresses = _object_code(), machine_code._addresses()
    assert machine_code.link(code, machine_code.FUNCTION, {}) is None  # it calls functions
    of_another_processor = code[:18] + b"\xb7\0" + code[20:]
    assert machine_code.link(of_another_processor, machine_code.FUNCTION, addresses) is None
    assert machine_code.link(b"\xcf\xfa\xed\xfe" + code, machine_code.FUNCTION, addresses) is None
    monkeypatch.setattr(machine_code, "link", lambda *_: None)
    assert is_compiled(text(), 4950)


def _object_code() -> bytes:
    """Return the object code of the only file."""
    (file,) = files()
    content = file.read_bytes()[len(b"pympsd kernel 1\n") + 32 :]
    return msgspec.msgpack.decode(content, type=machine_code.StoredKernel).object_code


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("spoil", [_link, _pipe, lambda path: path.chmod(0o644), lambda path: path.chmod(0o620)])
def test_a_file_that_others_can_have_written_is_not_loaded(spoil: Callable[[Path], object]) -> None:
    spoil(compile_now())
    assert not is_compiled(text(), 4950)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_link, "is not a directory"),
        (lambda path: path.chmod(0o755), f"mode 755; it has to belong to user {os.geteuid()} and have mode 700"),
        (lambda path: path.chmod(0o770), "mode 770; it has to"),
    ],
)
def test_a_folder_that_others_can_enter_is_not_used(
    folder: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], object], reason: str
) -> None:
    file = compile_now()
    spoil(folder)
    assert not is_compiled(text(), 4950)
    file.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMPSD_TIER", "compiled")
        assert is_compiled(text(), 4950)
        assert is_compiled(text(1), 4951)
    assert not file.exists()
    report = capfd.readouterr().err
    assert f"{folder} " in report
    assert reason in report
    assert report.count("\n") == 1
    assert report.endswith("PYMPSD_KERNEL_CACHE names another directory\n")


def test_the_folder_of_another_user_is_not_used(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it with the name of this user's."""
    compile_now()
    own = os.geteuid()
    folder.rename(folder.with_name(str(own + 1)))
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert not is_compiled(text(), 4950)
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    assert is_compiled(text(1), 4951)
    assert f"belongs to user {own} and has mode 700; it has to belong to user {own + 1}" in capfd.readouterr().err


def test_a_full_disk_is_reported_once_and_leaves_nothing(folder: Path) -> None:
    report = run("full", folder.parent)
    assert (report.count("\n"), report.count("File too large")) == (1, 1)
    assert files() == set()


@pytest.mark.long(but=["ro-Read-only file system"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize(
    ("options", "reason"), [("size=4k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_kernels_are_compiled_on_a_full_and_on_a_read_only_file_system(
    tmp_path: Path, options: str, reason: str
) -> None:
    mount = f'mount -t tmpfs -o {options} tmpfs {tmp_path} && exec "$@"'
    report = run("", tmp_path, "unshare", "--mount", "sh", "-c", mount, "sh")
    assert reason in report
    assert report.count("\n") == 1


@pytest.mark.parametrize("directory", ["/dev/null/kernels", "/proc/self/kernels"])
def test_a_directory_that_cannot_be_made_is_reported_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.setenv("PYMPSD_KERNEL_CACHE", directory)
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    assert is_compiled(text(), 4950)
    assert is_compiled(text(1), 4951)
    assert capfd.readouterr().err.count(f"not kept for later runs: {directory}/{os.geteuid()}: ") == 1


@pytest.mark.long
def test_a_process_that_is_killed_leaves_nothing_that_the_next_would_load(folder: Path) -> None:
    process = start("killed", folder.parent)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + SECONDS
        while not files() and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    for ptx, expected in ((text(), 4950), (text(1), 4951), (HEADER + KINDS, 1162)):
        is_compiled(ptx, expected)
    assert run("", folder.parent) == ""
    assert is_compiled(text(1), 4951)


MANY_CALLS = "".join(f"%x{n + 1} = call i32 @f(i32 %x{n})\n" for n in range(200_000))
SLOW = f"declare i32 @f(i32)\ndefine i32 @kernel(i32 %x0) {{\n{MANY_CALLS} ret i32 %x200000\n}}\n"
"""LLVM's text, for which it takes many seconds."""


@pytest.mark.long
def test_a_kernel_that_takes_the_compiler_too_long_stays_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_slowly(*_: object) -> bytes:
        compiled.append(1)
        return compiler_process.compile_text(SLOW)

    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    monkeypatch.setattr(compiler_process, "MAX_SECONDS", 1)
    monkeypatch.setattr(machine_code, "compile_text", compile_slowly)
    assert not is_compiled(text(), 4950)
    assert not is_compiled(text(), 4950)
    assert compiled == [1], "the next program has the refusal from the disk"


def test_a_failure_of_the_compiler_is_reported(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    monkeypatch.setattr(machine_code, "compile_text", lambda *_: compiler_process.compile_text("no text of LLVM"))
    assert not is_compiled(text(), 4950)
    assert "kernel k stays in NumPy: ChildProcessError" in capfd.readouterr().err


@pytest.mark.long
def test_a_compiler_that_exhausts_its_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "MAX_BYTES", 300 << 20)
    with pytest.raises(ChildProcessError):
        compiler_process.compile_text(SLOW)


def test_a_compiler_that_cannot_be_started_is_started_for_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "define i32 @kernel() {\n ret i32 0\n}\n"
    first = compiler_process.compile_text(kernel)
    pid = compiler_process.compiler.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in children_of(os.getpid()), "the end of the compiler")
    with monkeypatch.context() as context:
        context.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no process is left")))
        with pytest.raises(BlockingIOError):
            compiler_process.compile_text(kernel)
    assert compiler_process.compile_text(kernel) == first


@pytest.mark.parametrize("count", [2, 4], ids=["of a request", "of a child"])
def test_a_compiler_without_descriptors_refuses_a_kernel_and_continues(count: int) -> None:
    kernel = "define i32 @kernel() {\n ret i32 0\n}\n"
    first = compiler_process.compile_text(kernel)
    pid = compiler_process.compiler.pid
    wait_until(lambda: os.listdir(f"/proc/{pid}/fd") == ["0", "1", "2"], "the end of the first request")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3 + count, limits[1]))
    with pytest.raises(ChildProcessError):
        compiler_process.compile_text(kernel)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert compiler_process.compile_text(kernel) == first
    assert compiler_process.compiler.pid == pid
    assert children_of(pid) == []


def test_the_compiler_dies_with_the_executor() -> None:
    code = "import sys; from pathlib import Path\n"
    code += f"from {compiler_process.__name__} import compile_text\nprint(compile_text(sys.stdin.read()))"
    executor = subprocess.Popen([sys.executable, "-c", code], cwd="/", stdin=subprocess.PIPE)
    with executor:
        assert executor.stdin is not None
        executor.stdin.write(SLOW.encode())
        executor.stdin.close()
        wait_until(lambda: children_of(executor.pid), "the compiler")
        (compiler,) = children_of(executor.pid)
        wait_until(lambda: children_of(compiler), "the compilation")
        descriptors = [os.pidfd_open(pid) for pid in (compiler, *children_of(compiler))]
        executor.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], SECONDS)[0]
        os.close(descriptor)


def test_a_kernel_may_be_stored_twice_at_the_same_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def rename_after_another(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        kernel_cache.store("key", b"content")
        rename(*arguments, **options)

    monkeypatch.setattr(os, "rename", rename_after_another)
    monkeypatch.setattr(kernel_cache, "report", pytest.fail)
    kernel_cache.store("key", b"content")
    assert kernel_cache.load("key") == b"content"
    assert [file.name for file in folder.iterdir()] == ["key"]


def test_an_abandoned_temporary_file_is_removed(folder: Path) -> None:
    compile_now()
    old, new = folder / "a.1.new", folder / "b.2.new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    compile_now(1)
    assert (old.exists(), new.exists()) == (False, True)


def test_the_files_that_were_not_used_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, oldest = compile_now(), compile_now(1)
    for path in (kept, oldest):
        os.utime(path, (1, 1))
    assert is_compiled(text(), 4950)
    monkeypatch.setattr(kernel_cache, "MAX_BYTES", kept.stat().st_size + oldest.stat().st_size + 100)
    newest = compile_now(2)
    assert files() == {kept, newest}


def test_switched_off_nothing_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMPSD_KERNEL_CACHE", "off")
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert is_compiled(text(), 4950)
    assert (list(tmp_path.iterdir()), capfd.readouterr().err) == ([], "")


def test_the_cache_is_in_the_users_cache_home_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYMPSD_KERNEL_CACHE")
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert is_compiled(text(), 4950)
    assert len(list((tmp_path / "cache/pympsd/kernels").iterdir())) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_without_llvm_the_remedy_is_reported_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the executor, and to each program."""

    def fail(*_: Any) -> None:
        raise ImportError("No module named 'llvmlite'")

    monkeypatch.setattr(machine_code, "find_llvmlite", fail)
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    remedy = f"llvmlite is not installed: {sys.executable} -m pip install 'pympsd[compiled]'\n"
    for _ in range(2):
        device = Device(1 << 20)
        address, module = device.put(np.zeros(1, "u4")), device.load(text())
        for _ in range(2):
            device.launch(module, "k", 1, 64, address)
        output = module.facilities.output.take()[1].decode()
        assert output == f"pympsd: kernels run in NumPy, 10 to 700 times slower than compiled ones: {remedy}"
    report = capfd.readouterr().err
    assert report.count("\n") == 1
    assert report.endswith(remedy)


def test_llvmlite_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def find(name: str) -> Any:
        names.append(name)
        return find_spec(name)

    monkeypatch.setattr(compiler_process, "find_spec", find)
    compiler_process.find_llvmlite.cache_clear()
    compile_now()
    compile_now(1)
    assert names == ["llvmlite"]


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(BadSetting, match="the absolute path of a directory, or off, not 'cache'"):
        read({"PYMPSD_KERNEL_CACHE": "cache"}, "PYMPSD_KERNEL_CACHE")
