"""Received descriptors, and running out of them: with real sockets and a real limit."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from pympsd.channel.descriptors import ADVICE, close_all, explain, require_room
from pympsd.channel.message_channel import MessageChannel
from pympsd.wire import messages
from pympsd.wire.messages import Refused, SessionGranted
from pympsd_client._connect.session import Conversation


def descriptors() -> set[int]:
    """Return the descriptors this process has open."""
    return {fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{fd}")}


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """Let this process open only ``count`` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = descriptors()
    free = [fd for fd in range(max(used) + count + 2) if fd not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_require_room_checks_what_can_be_opened_and_keeps_nothing() -> None:
    before = descriptors()
    with room_for(3):
        require_room(3)
        with pytest.raises(OSError, match="Too many open files") as caught:
            require_room(4)
    assert caught.value.errno == errno.EMFILE
    assert descriptors() == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_the_documents_advice_is_given_only_for_a_lack_of_descriptors(number: int) -> None:
    assert explain(OSError(number, "None left")) == f"None left: {ADVICE}"
    assert explain(OSError(errno.EPERM, "Not allowed")) == "Not allowed"
    assert explain(OSError("without a number")) == "without a number"


WITH, WITHOUT, AGAIN = SessionGranted(1, 2, 3), Refused(1, "between"), SessionGranted(4, 5, 6)


def _send(sock: socket.socket, *sent: object) -> None:
    """Send messages, SessionGranted with a descriptor."""
    for message in sent:
        fds = [1] if isinstance(message, SessionGranted) else []
        socket.send_fds(sock, [messages.encode(message, len(fds))], fds)


async def test_a_channel_continues_after_losing_descriptors() -> None:
    own_end, peer_end = socket.socketpair()
    own_end.setblocking(False)
    channel = MessageChannel(trio.socket.from_stdlib_socket(own_end), fds_allowed=2)
    before = descriptors()
    _send(peer_end, WITH, WITHOUT)
    with trio.fail_after(20), room_for(0):
        first = await channel.receive()
        second = await channel.receive_message()
    _send(peer_end, AGAIN)
    third = await channel.receive_message()
    assert first is not None
    assert (first.fds, first.fds_lost) == ((), True)
    assert second == (WITHOUT, ())
    assert third is not None
    assert (third[0], len(third[1])) == (AGAIN, 1)
    close_all(third[1])
    assert descriptors() == before
    channel.close()
    peer_end.close()


def test_a_client_gets_an_error_for_lost_descriptors_and_can_continue() -> None:
    own_end, peer_end = socket.socketpair()
    conversation = Conversation(own_end)
    _send(peer_end, WITH, WITHOUT, AGAIN)
    with room_for(0), pytest.raises(OSError, match="Too many open files"):
        conversation.receive(20)
    assert conversation.receive(20) == (WITHOUT, ())
    message, fds = conversation.receive(20)
    assert (message, len(fds)) == (AGAIN, 1)
    close_all(fds)
    conversation.close()
    peer_end.close()
