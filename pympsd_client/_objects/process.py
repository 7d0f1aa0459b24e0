"""The state of this process: its connection to the devices (cuInit), and its handling of fork and exit.

cuInit connects to a daemon, or else to the native driver or a private executor (`_connect.discovery` decides). In a
process that runs natively, every later call goes to the module ``process.native``.

- **Fork.** A child of a process that has called cuInit cannot use CUDA. The child abandons the connection: it closes
  its copies of the sockets, sends nothing, and gives each context a sticky error.
- **Exit.** The connection is closed, and later calls (of destructors and daemon threads) return DEINITIALIZED.
- **Primary contexts** are counted here: the first retain opens a device's primary context, the last release closes
  it.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import CudaError, invalid_context, invalid_value
from pympsd_client._arguments.explanations import report_settings
from pympsd_client._command_stream.launch_cache import check_choice, invalidate
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._connect.discovery import NoDaemon, Way, check_switches, choose_without_daemon, refusal
from pympsd_client._connect.handshake import (
    GRANT_PAUSE_SECONDS,
    MAX_GRANTS,
    NotWelcomed,
    connect_to_daemon,
    request_session,
)
from pympsd_client._objects.context import Context, contexts

_FORKED: Final = (
    "CUDA cannot be used in a process forked after cuInit; start the child with spawn or exec, or fork before cuInit"
)


class Process:
    """The CUDA state of this process; one instance, `process`.

    ``connection`` is None before cuInit, after a fork and after the end. ``primaries``: the primary contexts by
    device number.
    """

    def __init__(self) -> None:
        self.native: Any = None
        """The module cuda.bindings.driver, which gets every call, if the program runs natively; else None."""
        self.when_native: list[Callable[[], None]] = []
        """Functions that are called when cuInit has decided that the program runs natively."""
        self.connection: Connection | None = None
        self.forked = False
        self.ended = False
        """Whether the process is exiting and the connection is closed."""
        self.calls_back = False
        """Whether this process has launched a host function, in which CUDA calls are not permitted."""
        self._starting = Lock()
        self.primaries: dict[int, Primary] = {}

    def initialize(self, flags: int) -> None:
        """Connect to the devices, as cuInit does; a later call only checks that the server has not gone.

        Raise CudaError: the daemon's or server's refusal, INVALID_VALUE for flags other than 0 and for invalid
        settings, DEINITIALIZED while the process exits, NOT_INITIALIZED after a fork. Other threads wait until the
        first call is done.
        """
        self._refuse_ended()
        if flags != 0:
            raise invalid_value(f"cuInit takes no flags: they must be 0, not {flags}")
        with self._starting:
            if self.connection is None and self.native is None:
                self._connect()
            elif self.connection is not None:
                self.connection.check()

    def _connect(self) -> None:
        """Set ``connection``, or ``native`` if the program runs natively; raise the errors of `initialize`."""
        environment = dict(os.environ)
        report_settings(environment)
        check_choice()
        check_switches(environment)
        for again in reversed(range(MAX_GRANTS)):
            connection = connect_to_daemon(environment)
            try:
                answer = connection if isinstance(connection, NoDaemon) else request_session(connection, environment)
                break
            except NotWelcomed:
                # The server has just ended. The daemon starts another, or refuses with the reason.
                if not again:
                    raise
                time.sleep(GRANT_PAUSE_SECONDS)
        if not isinstance(answer, NoDaemon):
            self._set_connection(answer)
            return
        # Imported here, because a program that has a daemon does not need it.
        from pympsd_client._connect.private_executor import (
            PrivateExecutors,
            PrivateExecutorWarning,
            has_native_driver,
        )

        way = choose_without_daemon(environment, answer, has_native_driver)
        if way is Way.REFUSE:
            raise CudaError(Result.ERROR_MPS_CONNECTION_FAILED, refusal(answer))
        if way is Way.NATIVE:
            for call in self.when_native:
                call()
            self.native = bindings
            return
        # The frames of a warning from here: _connect, initialize, cuInit's core, cuInit, the program.
        try:
            executors = PrivateExecutors(environment)
        except CudaError as error:
            # A program may ignore a failed cuInit, and then fail far from the cause; unless it is to see no device.
            if "leaves no device visible" not in error.reason:
                reason = f"{answer.reason}, and a private emulated device cannot be used: {error.reason}"
                warnings.warn(reason, PrivateExecutorWarning, stacklevel=5)
            raise
        self._set_connection(executors)
        warnings.warn(f"{answer.reason}: running on a private emulated device", PrivateExecutorWarning, stacklevel=5)

    def _set_connection(self, connection: Connection) -> None:
        self.primaries = {device.number: Primary(device) for device in connection.devices}
        self.connection = connection

    def require(self) -> Connection:
        """Return the connection; raise NOT_INITIALIZED before cuInit and after a fork, DEINITIALIZED at exit."""
        if self.connection is None:
            self._refuse_ended()
            raise CudaError(Result.ERROR_NOT_INITIALIZED, "call cuInit(0) first: it has not been called, or failed")
        return self.connection

    def _refuse_ended(self) -> None:
        if self.forked:
            raise _forked_error()
        if self.ended:
            raise _deinitialized_error()

    def device(self, index: int, wrong: int = Result.ERROR_INVALID_DEVICE) -> VisibleDevice:
        """Return a visible device by its number.

        Raise a CudaError with the code ``wrong`` if there is none, or the error of a server that has gone.
        """
        connection = self.require()
        connection.check()
        if not 0 <= index < len(connection.devices):
            raise CudaError(
                wrong,
                f"there is no device {index}; {len(connection.devices)} are visible, counted from 0",
            )
        return connection.devices[index]

    def primary(self, index: int) -> Primary:
        """Return a device's primary context."""
        return self.primaries[self.device(index).number]

    def after_fork(self) -> None:
        """In a forked child, make all calls fail if the parent had called cuInit; the parent is not affected."""
        is_connecting = self.connection is not None or self._starting.locked()
        self._starting = Lock()
        if self.native is not None or not is_connecting:
            return
        self.forked = True
        invalidate()
        connection, self.connection = self.connection, None
        for context in contexts.values():
            context.end(_forked_error())
        if connection is not None:
            connection.abandon()

    def at_exit(self) -> None:
        """Close the connection; every later call fails with DEINITIALIZED."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.ended = True
            invalidate()
            for context in tuple(contexts.values()):
                context.end(_deinitialized_error())
            with suppress(OSError):  # the program may have closed all its descriptors, as daemons do
                connection.close()


class Primary:
    """A device's primary context, opened by the first retain and closed by the last release (CUDA driver API).

    Its handle stays the same when it is opened again. ``flags`` take effect when it opens.
    """

    def __init__(self, device: VisibleDevice) -> None:
        self.device: Final = device
        self.context: Context | None = None
        self.flags = 0
        self._references = 0
        self._changing: Final = RLock()  # a finalizer that runs when the context closes may release it too

    def retain(self, connection: Connection) -> Context:
        """Add a user, and open the context if it is closed; return it. Raise CudaError."""
        with self._changing:
            context = self.context or Context(self.device, self.flags, primary=True)
            context.flags = self.flags if not context.active else context.flags
            try:
                context.open(connection)
            except BaseException:
                if self.context is None:
                    contexts.pop(context.handle, None)
                raise
            self.context = context
            self._references += 1
            return context

    def release(self, connection: Connection) -> None:
        """Release the context for one user; the last release closes it. Raise INVALID_CONTEXT if there is no user."""
        with self._changing:
            if self._references == 0 or self.context is None:
                raise invalid_context("the primary context is not retained")
            self._references -= 1
            if self._references == 0:
                self.context.close(connection)

    def reset(self, connection: Connection) -> None:
        """Close the context, which frees its objects; users keep their references, and retain it to continue."""
        with self._changing:
            if self.context is not None:
                self.context.close(connection)


def _deinitialized_error() -> CudaError:
    return CudaError(Result.ERROR_DEINITIALIZED, "the process is exiting, and its resources on the devices are freed")


def _forked_error() -> CudaError:
    return CudaError(Result.ERROR_NOT_INITIALIZED, _FORKED)


process: Final = Process()
os.register_at_fork(after_in_child=process.after_fork)
atexit.register(process.at_exit)
