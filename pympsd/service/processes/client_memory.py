"""Find out the device memory of the clients of the driver's server, which NVML reports to a child process.

The child (pympsd_server/backends/cuda/driver/client_memory.py) is started for the first request, ends after some
seconds without a request, and is reaped immediately. The driver's library may hang. So a child that does not answer
in time is killed, and another one is not started for RETRY_SECONDS; until then queries show the memory as unknown.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from attrs import define, field

from pympsd.errors import ProcessError
from pympsd.process.spawn import open_process

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ANSWER_SECONDS: Final = 0.8
"""The longest time to wait for an answer, including the start of the child."""
FRESH_SECONDS: Final = 0.2
"""The time for which an answer also serves later requests, for other servers and operators."""
END_SECONDS: Final = 1.0
"""The longest time to wait for a killed child. SIGKILL does not end it while it hangs in a call of the driver in the
kernel.
"""
RETRY_SECONDS: Final = 60.0
_PLACE: Final = ("backends", "cuda", "driver", "client_memory.py")
_MAX_ANSWER_BYTES: Final = 1 << 20

Memory = dict[str, dict[int, int]]
"""The device memory in bytes: for each device UUID, the bytes of each process by PID."""


class NotKnown(ProcessError):
    """The memory of clients cannot be read; the message contains the reason."""


@define
class ClientMemory:
    """The memory of all clients on this machine."""

    log: FilteringBoundLogger
    nursery: trio.Nursery
    """The nursery of the tasks that wait until children end."""
    _process: trio.Process | None = field(default=None, init=False)
    _lock: trio.Lock = field(factory=trio.Lock, init=False)
    _answer: Memory = field(factory=dict, init=False)
    _answered_at: float = field(default=float("-inf"), init=False)
    _not_before: float = field(default=float("-inf"), init=False)
    """The time before which no child is started."""

    async def current(self) -> Memory:
        """Return the memory of clients, or an empty mapping if it is not known."""
        async with self._lock:
            if trio.current_time() - self._answered_at > FRESH_SECONDS:
                self._answer = await self._ask()
                self._answered_at = trio.current_time()
            return self._answer

    async def _ask(self) -> Memory:
        """Return the child's answer. Without one, return nothing and do not ask for RETRY_SECONDS."""
        if trio.current_time() < self._not_before:
            return {}
        try:
            with trio.fail_after(ANSWER_SECONDS):
                line = await self._exchange() or await self._exchange()  # the child may just have ended
                if not line:
                    raise NotKnown("the program that asks it ended")
            return _decode(line)
        except trio.Cancelled:
            await self.close()  # a late answer would be mistaken for the answer to the next request
            raise
        except (trio.TooSlowError, NotKnown, OSError) as error:
            reason = f"no answer in {ANSWER_SECONDS} s" if isinstance(error, trio.TooSlowError) else str(error)
            self.log.warning("client_memory_unknown", reason=reason, seconds=int(RETRY_SECONDS))
            self._not_before = trio.current_time() + RETRY_SECONDS
            await self.close()
            return {}

    async def _exchange(self) -> bytes:
        """Return the child's answer; empty if the child has ended, after which the next call starts another one."""
        if self._process is None:
            self._process = await open_process(
                [sys.executable, "-I", _script()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
            self.nursery.start_soon(self._reap, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(b"\n")
            while not line.endswith(b"\n"):
                more = await self._process.stdout.receive_some(65536)
                if not more or len(line) > _MAX_ANSWER_BYTES:
                    break
                line += more
        if line.endswith(b"\n"):
            return line
        await self.close()
        return b""

    async def _reap(self, process: trio.Process) -> None:
        """Close the descriptors of a child as soon as it has ended, instead of at the next request."""
        await process.wait()
        async with self._lock:
            if self._process is process:
                await self.close()

    async def close(self) -> None:
        """End the child. Wait at most END_SECONDS, because the driver may keep it in the kernel."""
        process, self._process = self._process, None
        if process is None:
            return
        with trio.move_on_after(END_SECONDS, shield=True):
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
            await process.wait()


def _script() -> str:
    server = find_spec("pympsd_server")
    if server is None or server.origin is None:
        raise NotKnown("the package pympsd_server, which asks NVML, is not installed here")
    return os.path.join(os.path.dirname(server.origin), *_PLACE)


def _decode(line: bytes) -> Memory:
    try:
        answer = msgspec.json.decode(line, type=dict[str, dict[int, int] | str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotKnown(f"not an answer: {error}") from None
    if isinstance(reason := answer.get("error"), str):
        raise NotKnown(reason)
    return {uuid: memory for uuid, memory in answer.items() if isinstance(memory, dict)}
