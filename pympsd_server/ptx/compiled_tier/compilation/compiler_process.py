"""Compile the text of a kernel to object code, by LLVM in processes of its own.

The problem: LLVM takes seconds for some kernels and minutes for a few. A hostile kernel may exhaust memory, or make
LLVM fail an assertion, which ends the process. And llvmlite lets only one thread of a process use LLVM. In the
executor, one program's kernel could stop the kernels of all others. But a process needs 80 ms of processor time to
start Python and import llvmlite, more than LLVM needs for most kernels.

The idea: a process of the executor, the compiler, imports llvmlite and nothing of pympsd, and forks a child for each
kernel. It runs this file as a script. A request is one packet on its standard input, with four descriptors:

    executor                                 compiler                    child, one for each kernel
    limits; text, object code, messages  --> fork ---------------------> LLVM, MAX_SECONDS of processor time,
    (files in memory) and a socket           |                           MAX_BYTES of memory
    exit status (socket)                 <-- wait <--------------------- object code, or what is wrong (files)

The compiler kills a child whose socket the executor has closed. The compiler ends when the executor ends (end of file
on standard input), or after IDLE_SECONDS without a child; then the next kernel starts another.

Invariant: in the executor itself, LLVM is used only for object code that object_code.py cannot link.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, NoReturn

LEVEL: Final = 2
MAX_DEPENDENCIES: Final = 200
"""The number of memory accesses between which LLVM's scheduler knows the dependencies, each with each, in a part of a
kernel without branches; above it, half of them become one. LLVM's own number is 1000, and its time grows with the
square: a kernel with long straight parts took 12 s instead of 3 s, and its code differed in 0.04 % of its bytes.
"""
MAX_SECONDS: Final = 60
"""The maximum processor time of a compilation; nearly all kernels take less than one second."""
MAX_PROCESSES: Final = 3 * min(4, len(os.sched_getaffinity(0)))
"""The maximum number of compilations of an executor at the same time; one client has at most a third of them."""
_MACHINE_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MAX_BYTES: Final = max(1 << 30, min(8 << 30, _MACHINE_BYTES // 2 // MAX_PROCESSES))
"""The maximum memory of a compilation, in bytes: half the machine's memory for all together, but at least 1 GiB. The
longest texts take 300 MB."""
MASK_REGISTERS: Final = "avx512bw"
"""The name, in LLVM and in /proc/cpuinfo, of the extension that gives a processor mask registers for 32 lanes."""
_MASK_TO_LANES: Final = re.compile(r"^  (%\S+) = bitcast i32 (\S+) to <32 x i1>", re.MULTILINE)
IDLE_SECONDS: Final = 5.0
"""The time after which a compiler without work ends."""
_LOOK_SECONDS: Final = 0.5
"""The time between two checks of whether the result is still needed."""
REAPER: Final = "end of the compiler"
"""The name of the thread that waits for the compiler's end."""
_MAX_BYTES_OF_PACKET: Final = 64
_NO_STATUS: Final = -signal.SIGKILL
"""The status of a compilation whose compiler was killed, as when memory is short."""
_DESCRIPTORS: Final = 4
"""The number of descriptors of a request."""
_PR_SET_PDEATHSIG: Final = 1


@cache
def find_llvmlite() -> Path:
    """Return the folder from which llvmlite is imported. Raises ImportError if it is not installed."""
    package = find_spec("llvmlite")
    if package is None or package.origin is None:
        raise ImportError("llvmlite is not installed")
    return Path(package.origin).parents[1]


def compile_text(text: str, is_abandoned: Callable[[], bool] = lambda: False) -> bytes:
    """Compile a module in LLVM's language; return its object code. This may take MAX_SECONDS or longer.

    Raises:
        ImportError: llvmlite is not installed.
        TimeoutError: The compilation needs more than MAX_SECONDS of processor time.
        ChildProcessError: The compilation failed; the text has LLVM's last line.
        InterruptedError: `is_abandoned` has returned True. The compilation has ended or will.
    """
    for _ in range(2):  # again if the compiler is killed, because others' compilations may be the reason
        answer, code, messages = _request(text, is_abandoned)
        if answer:
            break
    status = int(answer or _NO_STATUS)
    if status == -signal.SIGXCPU:
        raise TimeoutError(f"LLVM needs more than {MAX_SECONDS} s of processor time for this kernel")
    if status:
        reason = messages.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildProcessError(f"the compiler's process ended with status {status}: {reason}")
    return code


def _request(text: str, is_abandoned: Callable[[], bool]) -> tuple[bytes, bytes, bytes]:
    """Let the compiler compile a text; return the exit status (empty if the compiler was killed), the object code and
    the messages.
    """
    with ExitStack() as stack:
        names = "kernel", "object code", "messages"
        content, code, messages = (stack.enter_context(open(os.memfd_create(name), "w+b")) for name in names)
        content.write(text.encode())
        content.seek(0)  # for the compilation, which has the same position
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair(type=socket.SOCK_SEQPACKET))
        sent = content, code, messages, theirs
        compiler.request(f"{MAX_SECONDS} {MAX_BYTES}", [file.fileno() for file in sent])
        theirs.close()
        answer = _wait(ours, is_abandoned)
        code.seek(0)
        messages.seek(0)
        return answer, code.read(), messages.read()


def _wait(connection: socket.socket, is_abandoned: Callable[[], bool]) -> bytes:
    """Wait for the exit status of a compilation; empty if the compiler was killed.

    Raises InterruptedError if nobody needs the kernel any more.
    """
    connection.settimeout(_LOOK_SECONDS)
    while True:
        try:
            return connection.recv(_MAX_BYTES_OF_PACKET)
        except TimeoutError:
            if is_abandoned():
                raise InterruptedError("nobody needs the kernel any more") from None


class _Compiler:
    """The compiler of this process, which is started when it is needed. Thread-safe."""

    def __init__(self) -> None:
        self.pid = 0
        self.requests: socket.socket | None = None
        self._requesting: Final = Lock()

    def request(self, limits: str, descriptors: Sequence[int]) -> None:
        """Request a compilation. If the compiler is killed, the descriptors are closed without an answer.

        Raises OSError or RuntimeError if the compiler cannot be started, and ImportError without llvmlite.
        """
        with self._requesting:
            for _ in range(2):
                if self.requests is None:
                    self.requests = self._start()
                try:
                    socket.send_fds(self.requests, [limits.encode()], descriptors)
                    return
                except ConnectionError:  # the compiler has ended, or is ending because it had no work
                    self.requests.close()
                    self.requests = None

    def _start(self) -> socket.socket:
        command = sys.executable, "-IS", __file__, str(find_llvmlite())
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            self.pid = process.pid
            Thread(target=process.wait, name=REAPER, daemon=True).start()
        except (OSError, RuntimeError):  # no process or no thread is left
            ours.close()  # which ends the compiler
            raise
        return ours


compiler: Final = _Compiler()


def new_machine(llvm: Any) -> Any:
    """Return llvmlite's target machine for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target, features = llvm.Target.from_default_triple(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=LEVEL, jit=True)


def _emit(text: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.set_option("", f"-dag-maps-huge-region={MAX_DEPENDENCIES}")
    llvm.set_option("", f"-dag-maps-reduction-size={MAX_DEPENDENCIES // 2}")
    machine, module = new_machine(llvm), llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    if not llvm.get_host_cpu_features().get(MASK_REGISTERS):
        module = llvm.parse_assembly(spread_masks(str(module)))
    code: bytes = machine.emit_object(module)
    return code


def spread_masks(text: str) -> str:
    """Replace each conversion of 32 bits to a vector of i1, which without mask registers LLVM does bit by bit.

    The text must be optimized already, because the optimizer cancels only a bitcast with its inverse.
    """
    return _MASK_TO_LANES.sub(_spread_mask, text)


def _spread_mask(conversion: re.Match[str]) -> str:
    """Return the instructions that compare each lane's bit of a mask with 0."""
    result, mask = conversion.groups()
    name, kind = f"%spread.{result[1:]}", "<32 x i32>"
    bits = ", ".join(f"i32 {1 << lane}" for lane in range(32))
    return f"""\
  {name}.first = insertelement {kind} poison, i32 {mask}, i64 0
  {name}.all = shufflevector {kind} {name}.first, {kind} poison, <32 x i32> zeroinitializer
  {name}.own = and {kind} {name}.all, <{bits}>
  {result} = icmp ne {kind} {name}.own, zeroinitializer"""


class _Children:
    """The compiler's side: the compilations that run, and the requests for more."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """For each child's pidfd: the child's PID, and the socket of the request."""
        self._poll = select.poll()

    def run(self) -> None:
        """Start a child for each request, until there is none for IDLE_SECONDS or the executor has ended."""
        self._poll.register(self._requests, select.POLLIN)
        is_open = True
        while is_open or self._running:
            ready = dict(self._poll.poll(None if self._running else IDLE_SECONDS * 1000))
            if not ready:
                self._requests.shutdown(socket.SHUT_RD)  # from now on, requests fail; one may have come just now
            if self._requests.fileno() in ready or not ready:
                limits, descriptors, *_ = socket.recv_fds(self._requests, _MAX_BYTES_OF_PACKET, _DESCRIPTORS)
                if len(descriptors) == _DESCRIPTORS:
                    self._start(*map(int, limits.split()), *descriptors)
                elif limits:  # this process may open no more; without an answer the executor sees an end
                    for descriptor in descriptors:
                        os.close(descriptor)
                else:
                    is_open = False
                    self._poll.unregister(self._requests)
            for pidfd, (pid, answer_to) in tuple(self._running.items()):
                if pidfd in ready:
                    self._report(pidfd)
                elif answer_to.fileno() in ready:
                    self._poll.unregister(answer_to)
                    os.kill(pid, signal.SIGKILL)

    def _start(self, seconds: int, nbytes: int, content: int, output: int, messages: int, answer_to: int) -> None:
        parent, pid, connection = os.getpid(), 0, socket.socket(fileno=answer_to)
        try:
            pid = os.fork()
            if pid == 0:
                _compile(parent, seconds, nbytes, content, output, messages)
            pidfd = os.pidfd_open(pid)
            self._running[pidfd] = pid, connection
            self._poll.register(pidfd, select.POLLIN)
            self._poll.register(connection, select.POLLHUP)
        except OSError as error:  # no process or no descriptor is left
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.write(messages, str(error).encode())
            with connection, suppress(OSError):
                connection.send(b"1")
        for descriptor in (content, output, messages):
            os.close(descriptor)

    def _report(self, pidfd: int) -> None:
        """Report the exit status of a child that has ended."""
        pid, answer_to = self._running.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with answer_to, suppress(OSError, KeyError):
            self._poll.unregister(answer_to)
            answer_to.send(str(os.waitstatus_to_exitcode(status)).encode())
        self._poll.unregister(pidfd)
        os.close(pidfd)


def _compile(parent: int, seconds: int, nbytes: int, content: int, output: int, messages: int) -> NoReturn:
    """Compile a file to another in a child of the compiler, which it ends."""
    try:
        os.dup2(messages, sys.stderr.fileno())
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _limit(resource.RLIMIT_CPU, seconds)
            _limit(resource.RLIMIT_AS, nbytes)
            with open(content, "rb") as text, open(output, "wb") as result:
                result.write(_emit(text.read().decode()))
            os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _limit(kind: int, maximum: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (maximum if hard == resource.RLIM_INFINITY else min(maximum, hard), hard))


def main() -> None:
    """Be the compiler, for requests on standard input. Argument: llvmlite's folder."""
    with suppress(OSError):  # if memory is short, kill this process, and not the executor of many programs
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(resource.RLIMIT_CORE, 0)
    sys.path.append(sys.argv[1])
    with suppress(Exception):  # each child fails with the same error, and reports it
        import llvmlite.binding  # noqa: F401
    with socket.socket(fileno=sys.stdin.fileno()) as requests:
        _Children(requests).run()


if __name__ == "__main__":
    main()
