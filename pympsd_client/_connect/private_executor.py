"""Devices without a daemon: the native driver if there is one, else private executors, one for each device.

A private executor is the server's executor program, started as a child, with the same command stream.
"""

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec

import pympsd.process.version
from pympsd.channel.descriptors import close_all
from pympsd.channel.own_libraries import remove_routing
from pympsd.process.version import API_VERSION, build_id
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages as messages
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.connection import Opened, VisibleDevice, open_stream
from pympsd_client._connect.driver_library import load_driver
from pympsd_client._connect.session import Conversation, ConversationEnded

GENERATION: Final = 1
_CLIENT: Final = 1
_LINK_FD: Final = "--link-fd"
_LIST_TIMEOUT: Final = 60.0
_LEAVE_TIMEOUT: Final = 5.0


class PrivateExecutorWarning(RuntimeWarning):
    """The program runs on a private executor, without MPS: nothing is shared with other processes.

    cuInit warns once if it finds neither a daemon nor a GPU, also if it then fails because a setting of the emulated
    devices is wrong. PYMPSD_REQUIRE_MPS=1 makes it fail instead.
    """


def has_native_driver() -> bool:
    """Return whether libcuda loads and its cuInit succeeds, so that the program can run natively."""
    try:
        # Do not ask cuda.bindings: its cuInit may be this client's own (`pympsd_client.routing`).
        return int(load_driver().cuInit(0)) == Result.SUCCESS
    except (OSError, AttributeError):
        return False


def _interpreter() -> str:
    """Return the path of a Python that can import the packages.

    pympsd-run names one for native programs and for Pythons of another environment.
    """
    return os.environ.get("PYMPSD_PYTHON") or sys.executable


def list_devices(environment: Mapping[str, str]) -> tuple[VisibleDevice, ...]:
    """Return the devices that an environment describes (see `pympsd.devices`); raise CudaError."""
    script = Path(pympsd.process.version.__file__).parents[1] / "devices" / "__main__.py"
    try:
        child = subprocess.run(
            [_interpreter(), "-I", str(script)],
            env=remove_routing(environment),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIST_TIMEOUT,
        )  # fmt: skip
        answer = msgspec.json.decode(child.stdout, type=dict[str, msgspec.Raw])
        if "devices" in answer:
            properties = msgspec.json.decode(answer["devices"], type=tuple[DeviceProperties, ...])
            if answer.get("backend") == b'"cuda"':
                reason = "a private device is an emulated one, and this machine has GPUs; set PYMPSD_BACKEND=emulated"
                raise CudaError(Result.ERROR_NO_DEVICE, reason)
            return tuple(VisibleDevice(number, number, properties) for number, properties in enumerate(properties))
        reason = msgspec.json.decode(answer["error"], type=str)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, KeyError) as error:
        reason = f"the devices of this machine could not be listed: {error}"
    raise CudaError(Result.ERROR_NO_DEVICE, reason)


class PrivateExecutors:
    """Executors of this process alone, each started when its device is first used. Thread-safe.

    Without MPS no percentage, memory limit, priority or execution affinity applies.
    """

    provisions = False
    per_context = False

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raise CudaError if the devices cannot be listed or there are none."""
        self.driver_version: int = API_VERSION
        self.devices: tuple[VisibleDevice, ...] = list_devices(environment)
        self._environment: Final = dict(environment)
        self._running: Final[dict[int, Executor]] = {}
        self._requesting: Final = Lock()
        self._next_id: Final = count(1).__next__

    def open_context(
        self, device: VisibleDevice, flags: int, affinity: int | None = None, partition: int | None = None
    ) -> Opened:
        """Make a context on a device; start its executor if it does not run. Raise CudaError."""
        if affinity is not None:
            reason = "execution affinity needs an MPS daemon, and this process runs on a private device; pass None"
            raise CudaError(Result.ERROR_UNSUPPORTED_EXEC_AFFINITY, reason)
        with self._requesting:
            executor = self._running.get(device.ordinal)
            if executor is None:
                executor = self._running[device.ordinal] = Executor(device, self._environment)
            return executor.attach(self._next_id(), partition or device.properties.multiprocessors)

    def close_context(self, device: VisibleDevice, context_id: int) -> None:
        """Destroy a context; raise CudaError."""
        with self._requesting:
            self._running[device.ordinal].detach(context_id)

    def check(self) -> None:
        """Do nothing, because the command stream itself detects an executor's end."""

    def close(self) -> None:
        """End the executors and reap them."""
        for executor in self._running.values():
            executor.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets."""
        for executor in self._running.values():
            executor.abandon()


class Executor:
    """An executor, a child process that ends when its link closes. Calls are made one at a time."""

    def __init__(self, device: VisibleDevice, environment: Mapping[str, str]) -> None:
        """Start the executor and wait until its device is open; raise CudaError."""
        self._device: Final = device
        self._request: Final = count(1).__next__
        self._transport: Transport | None = None
        own_end, executor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link: Final = Conversation(own_end)
        with executor_end:
            try:
                self._process: Final = _start(executor_end.fileno(), environment)
            except CudaError:
                self._link.close()
                raise
        self._set_up()

    def _set_up(self) -> None:
        """Send the executor its device, and wait until the executor has opened the device; raise CudaError."""
        try:
            self._link.send(
                messages.ExecutorSetup(
                    build=build_id(), ordinal=self._device.ordinal, generation=GENERATION,
                    backend="emulated", device=self._device.properties,
                )
            )  # fmt: skip
            answer, fds = self._link.receive()
            close_all(fds)
        except ConversationEnded as error:
            self.close()
            raise connection_lost(f"the private executor: {error}") from None
        if not isinstance(answer, messages.ExecutorReady):
            self.close()
            if isinstance(answer, messages.ExecutorFailed):
                raise CudaError(answer.code, answer.reason)
            raise connection_lost(f"the private executor sent {type(answer).__name__} instead of ExecutorReady")

    def attach(self, context_id: int, multiprocessors: int) -> Opened:
        """Make a context; raise CudaError."""
        request = self._request()
        message = messages.Attach(
            request=request, client=_CLIENT, context=context_id, new_stream=self._transport is None,
            quota=Quota(multiprocessors, memory_bytes=0, priority=0),
        )  # fmt: skip
        answer = self._ask(message, request)
        if not isinstance(answer, messages.Attached) or self._transport is None:
            raise connection_lost(f"the private executor sent {type(answer).__name__} instead of Attached")
        return Opened(
            context_id=context_id,
            generation=GENERATION,
            transport=self._transport,
            multiprocessors=multiprocessors,
            memory_bytes=answer.memory_bytes,
            stream_priorities=answer.stream_priorities,
        )

    def detach(self, context_id: int) -> None:
        """Destroy a context; raise CudaError."""
        request = self._request()
        answer = self._ask(messages.Detach(request=request, context=context_id), request)
        if not isinstance(answer, messages.ExecutorDone):
            raise connection_lost(f"the private executor sent {type(answer).__name__} instead of ExecutorDone")

    def _ask(self, message: object, request: int) -> Any:
        """Send a request and return its answer; keep a command stream that comes with it; raise CudaError."""
        try:
            self._link.send(message)
            answer: Any = None
            while isinstance(answer, messages.ContextFaulted) or getattr(answer, "request", 0) != request:
                # Skip reports of faults: the command stream reports them too.
                answer, fds = self._link.receive()
                if isinstance(answer, messages.Attached) and len(fds) == 2:
                    self._transport = open_stream(fds, answer.shared_bytes, connection_lost, answer.ring_bytes)
                else:
                    close_all(fds)
        except (ConversationEnded, OSError) as error:
            raise connection_lost(f"the private executor: {error}; end this process and start it again") from None
        if isinstance(answer, messages.ExecutorRefused):
            raise CudaError(answer.code, answer.reason)
        return answer

    def close(self) -> None:
        """Close the link and the command stream; wait for the process to end, or kill it."""
        if self._transport is not None:
            self._transport.close()
        self._link.close()
        try:
            self._process.wait(_LEAVE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets; the parent reaps the process."""
        if self._transport is not None:
            self._transport.abandon()
        self._link.close()
        self._process.returncode = 0


def _start(link: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start an executor by its program's path, without importing its package.

    It runs in its own session, where it does not get the terminal's signals.
    """
    server = importlib.util.find_spec("pympsd_server")
    if server is None or server.origin is None:
        raise CudaError(Result.ERROR_NO_DEVICE, "the package pympsd_server is not installed; install pympsd whole")
    script = Path(server.origin).parent / "executor" / "__main__.py"
    try:
        return subprocess.Popen(
            [_interpreter(), "-I", str(script), _LINK_FD, str(link)],
            # An executor's own libcuda must not connect to a daemon.
            env={**remove_routing(environment), "CUDA_MPS_PIPE_DIRECTORY": os.devnull},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(link,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CudaError(Result.ERROR_OPERATING_SYSTEM, f"no executor could be started: {error}") from None
