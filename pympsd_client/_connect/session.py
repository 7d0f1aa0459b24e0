"""A session with an MPS server: contexts opened and closed, one command stream for each device.

Each request has a number, which its answer repeats. Requests are sent one at a time. If Ctrl-C interrupts a request,
its answer may arrive before the next request's. Then the command stream that it brings is kept (`Session._adopt`),
and its context is closed again (`Session._decline`).

A server that ends may send the reason as a last message without a number; every later call fails with that reason.
If an executor ends but its server does not, the device has had a fatal fault.

A program that requests an API older than CUDA 4.0 gets no context under MPS (MPS documents, 2.3.2). C programs define
CUDA_FORCE_API_VERSION for their compiler; here it is an environment variable, 1000 x major + 10 x minor, such as
3020. As in C only the leading digits count, and a value without digits is ignored.

A `Conversation` sends and receives messages over a socket; a received message brings its file descriptors.
"""

import errno
import os
import re
import select
import socket
from collections import deque
from collections.abc import Mapping
from itertools import count
from threading import RLock
from typing import Any, Final

from pympsd.channel.descriptors import FD_BYTES, close_all, descriptors_in, require_room, whole
from pympsd.errors import DaemonError, RemoteError
from pympsd.vocabulary.limits import BadLimit, ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import PERCENTAGE
from pympsd.wire import messages
from pympsd.wire.framing import Frame, FrameReader
from pympsd_client._arguments.errors import CudaError, connection_lost, not_supported
from pympsd_client._arguments.explanations import report_settings
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.connection import Opened, VisibleDevice, open_stream

MAX_FDS: Final = 2
"""The number of descriptors with ContextOpened and Attached: the command stream and the staging memory."""
_CHUNK: Final = 65536


class ConversationEnded(DaemonError):
    """The other side closed the conversation, or violated the protocol."""


class Conversation:
    """Sends and receives messages over a connected stream socket, which it owns. For one thread at a time.

    Ctrl-C during a wait loses no byte and no descriptor.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket: Final = connection
        self._reader = FrameReader(fds_allowed=MAX_FDS)
        self._frames: deque[Frame] = deque()

    def send(self, message: object) -> None:
        """Send a message; raise ConversationEnded if the other side has gone."""
        try:
            # MSG_NOSIGNAL, because SIGPIPE would kill a native program, which does not ignore it.
            self.socket.sendall(messages.encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise ConversationEnded(f"messages cannot be sent: {error.strerror}") from None

    def receive(self, timeout: float | None = None) -> tuple[Any, tuple[int, ...]]:
        """Return the next message and its descriptors, which the caller owns; wait ``timeout`` seconds at most.

        Raise ConversationEnded, TimeoutError, and OSError if this process may not open the descriptors.
        """
        while not self._frames:
            self.wait(timeout)
            self._read()
        frame = self._frames.popleft()
        if frame.fds_lost:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            return messages.decode(frame), frame.fds
        except RemoteError as error:
            close_all(frame.fds)
            raise ConversationEnded(f"received {error}") from None

    def wait(self, timeout: float | None) -> None:
        """Wait until there is something to read; raise TimeoutError after ``timeout`` seconds."""
        # Wait before reading, so that a Ctrl-C during the wait loses no byte or descriptor.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError("no message came")

    def _read(self) -> None:
        try:
            data, fds, lost = _receive(self.socket)
        except OSError as error:
            raise ConversationEnded(f"the connection is lost: {error.strerror}") from None
        if not data:
            raise ConversationEnded("the conversation was closed")
        try:
            self._frames.extend(self._reader.feed(data, fds, lost))
        except RemoteError as error:
            raise ConversationEnded(f"received {error}") from None

    @property
    def is_over(self) -> bool:
        """Whether the other side has closed its end. Checking this neither waits nor reads."""
        return self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Return whether the other side has closed its end, or does so within ``seconds``."""
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLRDHUP)
        except (OSError, ValueError):
            return True
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket, and the descriptors of messages that were not received."""
        self.socket.close()
        close_all(self._reader.take_unclaimed_fds())
        while self._frames:
            close_all(self._frames.popleft().fds)


def _receive(connection: socket.socket) -> tuple[bytes, tuple[int, ...], bool]:
    """Receive bytes and descriptors; these are close-on-exec, because another thread may start an executor."""
    space = socket.CMSG_SPACE(MAX_FDS * FD_BYTES)
    data, controls, flags, _ = connection.recvmsg(_CHUNK, space, socket.MSG_CMSG_CLOEXEC)
    return data, *whole(descriptors_in(controls), flags)


VARIABLE: Final = "CUDA_FORCE_API_VERSION"
MIN_API_VERSION: Final = 4000
_NUMBER: Final = re.compile(r"\s*\+?([0-9]+)")


def read_forced_version(text: str | None) -> int | None:
    """Return the version in the variable's value, or None if the value does not begin with digits."""
    match = _NUMBER.match(text or "")
    return int(match[1]) if match is not None else None


def check_api_version(environment: Mapping[str, str]) -> None:
    """Raise NOT_SUPPORTED if the environment requests an API older than CUDA 4.0."""
    version = read_forced_version(environment.get(VARIABLE))
    if version is not None and version < MIN_API_VERSION:
        raise not_supported(
            f"{VARIABLE}={version}: under MPS a context is made through the API of CUDA 4.0 ({MIN_API_VERSION}) or "
            "later; unset it"
        )


SERVER_END_SECONDS: Final = 0.5
"""How long to wait for the session to close when an executor's link has closed, in seconds.

A server that is killed may close the links to its executors before its sessions; one that exits closes its sessions
first.
"""
_STREAM_FDS: Final = 4
"""The number of descriptors of two command streams, because another thread may open one at the same time."""


class Session:
    """This process's session with its server; requests go one at a time. Thread-safe."""

    provisions = True

    def __init__(
        self, conversation: Conversation, welcome: messages.SessionWelcome, per_context: bool = False
    ) -> None:
        """Take ownership of the conversation in which the server has sent its welcome.

        ``per_context``: the process started with partitioning of each context (MPS documents, 4.2.6).
        """
        self.per_context = per_context
        self._conversation: Final = conversation
        self._requesting: Final = RLock()
        self._number: Final = count(1).__next__
        self._requested: Final[dict[int, VisibleDevice]] = {}
        self._transports: Final[dict[int, Transport]] = {}
        self._lost: CudaError | None = None
        self.driver_version: int = welcome.driver_version
        self.devices: tuple[VisibleDevice, ...] = tuple(
            VisibleDevice(number, ordinal, properties)
            for number, (ordinal, properties) in enumerate(zip(welcome.ordinals, welcome.devices, strict=True))
        )

    def open_context(
        self, device: VisibleDevice, flags: int, affinity: int | None = None, partition: int | None = None
    ) -> Opened:
        """Ask the server for a context on a device, and return its properties.

        ``affinity``: the maximum number of SMs, rounded up; ``partition``: their exact number, for a green context.
        With partitioning of each context the environment's present percentage is sent too. The first context of a
        device brings its command stream. Raise CudaError: the server's refusal, or MPS_RPC_FAILURE if the server has
        gone.
        """
        check_api_version(os.environ)
        if device.ordinal not in self._transports:
            # If this process may not open more descriptors, they would be lost in transit.
            require_room(_STREAM_FDS)
        percentage, by_device = _percentage_now() if self.per_context else (None, "")
        with self._requesting:
            number = self._number()
            self._requested[number] = device
            request = messages.OpenContext(number, device.number, flags, percentage, affinity, partition, by_device)
            answer = self._ask(request, number)
            if not isinstance(answer, messages.ContextOpened):
                raise self._end_session(f"received {type(answer).__name__} instead of ContextOpened")
            transport = self._transports.get(device.ordinal)
            if transport is None:
                raise self._end_session("a context was opened without a command stream")
            if transport.error is not None:
                # The executor has ended in the meantime, but the server has not.
                raise transport.error.copy()
        return Opened(
            context_id=answer.context,
            generation=answer.generation,
            transport=transport,
            multiprocessors=answer.multiprocessors,
            memory_bytes=answer.memory_bytes,
            stream_priorities=answer.stream_priorities,
        )

    def close_context(self, device: VisibleDevice, context_id: int) -> None:
        """Ask the server to close a context; return when its resources are free."""
        with self._requesting:
            number = self._number()
            answer = self._ask(messages.CloseContext(request=number, context=context_id), number)
            if not isinstance(answer, messages.ContextClosed):
                raise self._end_session(f"received {type(answer).__name__} instead of ContextClosed")

    def _ask(self, request: object, number: int) -> Any:
        """Send a request with this number and return its answer.

        Raise CudaError if the server refuses the request or has gone.
        """
        if self._lost is not None:
            raise self._lost.copy()
        try:
            self._conversation.send(request)
            while True:
                answer, fds = self._conversation.receive()
                self._adopt(answer, fds)
                if isinstance(answer, messages.RequestRefused) and not answer.request:
                    self._lost = CudaError(answer.code, answer.reason)
                    raise self._lost.copy()
                if getattr(answer, "request", None) == number:
                    break
                self._decline(answer)
        except (ConversationEnded, OSError) as error:
            raise self._end_session(str(error)) from None
        if isinstance(answer, messages.RequestRefused):
            raise CudaError(answer.code, answer.reason)
        return answer

    def _adopt(self, answer: object, fds: tuple[int, ...]) -> None:
        """Keep the command stream that came with an answer, even one to a request that Ctrl-C ended."""
        device = self._requested.pop(getattr(answer, "request", 0), None)
        if not fds:
            return
        if not isinstance(answer, messages.ContextOpened) or device is None or len(fds) != 2:
            close_all(fds)
            raise ConversationEnded(
                f"received {type(answer).__name__} with {len(fds)} descriptors that belong to nothing"
            )
        self._transports[device.ordinal] = open_stream(
            fds, answer.shared_bytes, self._stream_ended, answer.ring_bytes
        )

    def _decline(self, answer: object) -> None:
        if isinstance(answer, messages.ContextOpened):
            self._conversation.send(messages.CloseContext(request=self._number(), context=answer.context))

    def _stream_ended(self, reason: str) -> CudaError:
        """Return why an executor has ended: its server has ended, or else its device has had a fatal fault."""
        if self._conversation.ends_within(SERVER_END_SECONDS):
            return self._end_session("the session has ended")
        return CudaError(Result.ERROR_LAUNCH_FAILED, f"a fatal GPU fault: {reason}")

    def _end_session(self, reason: str) -> CudaError:
        if self._lost is None:
            message = self._last_message()
            self._lost = message or connection_lost(f"the MPS server: {reason}; end this process and start it again")
            if self._conversation.is_over:
                # The server's contexts have gone, even if executors run for another moment.
                for transport in tuple(self._transports.values()):
                    transport.fail(self._lost)
        return self._lost.copy()

    def _last_message(self) -> CudaError | None:
        """Return the error that the server sent before it ended, or None.

        The result is also None while another thread makes a request, because that thread reads the error itself.
        """
        if self._requesting.acquire(blocking=False):
            try:
                while True:
                    answer, fds = self._conversation.receive(timeout=0)
                    close_all(fds)
                    if isinstance(answer, messages.RequestRefused) and not answer.request:
                        return CudaError(answer.code, answer.reason)
            except (ConversationEnded, OSError):  # includes TimeoutError
                pass
            finally:
                self._requesting.release()
        return None

    def check(self) -> None:
        """Raise MPS_RPC_FAILURE if the server has gone; this process cannot connect to another one."""
        if self._lost is None and self._conversation.is_over:
            self._end_session("the session has ended")
        if self._lost is not None:
            raise self._lost.copy()

    def close(self) -> None:
        """End the session; the server frees this process's resources."""
        for transport in tuple(self._transports.values()):
            transport.close()
        self._conversation.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets."""
        for transport in tuple(self._transports.values()):
            transport.abandon()
        self._conversation.close()


def _percentage_now() -> tuple[float | None, str]:
    """Return the environment's percentage, or the text of its percentages by device, which the server parses.

    None and an empty text if neither is valid.
    """
    text = os.environ.get(PERCENTAGE, "")
    report_settings({PERCENTAGE: text})
    if "=" in text:
        return None, text
    try:
        return ThreadPercentage.parse(text).value, ""
    except BadLimit:
        return None, ""
