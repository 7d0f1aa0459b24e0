"""What graphs with conditional nodes need of a backend: calls in stream order, and values that kernels set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from tests.backends.contract.port_user import Notified, PortUser
from tests.backends.contract.test_host_functions import HostFunction
from tests.backends.contract.test_order import notification_of

HANDLE = 1 << 48
pytestmark = pytest.mark.needs("evaluates_conditions")


def test_pieces_are_taken_when_the_stream_comes_to_them(user: PortUser) -> None:
    stream, taken = user.context.create_stream(True, 0), []

    def pieces() -> Iterator[None]:
        for index in range(3):
            taken.append(index)
            yield

    before = HostFunction.of(stream)
    user.context.call(stream, pieces())
    after = notification_of(stream)
    before.begun.wait()
    assert not taken
    before.finish()
    after.wait()
    assert taken == [0, 1, 2]


def test_what_pieces_cannot_do_is_the_contexts_fault(user: PortUser) -> None:
    def pieces() -> Iterator[None]:
        raise BackendError(Result.ERROR_LAUNCH_FAILED, "the reason")
        yield

    user.context.call(user.context.default_stream, pieces())
    done = Notified()
    user.context.notify(done)
    assert (done.wait(), done.reason) == (Result.ERROR_LAUNCH_FAILED, "the reason")


def test_a_condition_is_the_same_for_all_who_hold_it(user: PortUser) -> None:
    condition = user.context.condition(HANDLE)
    assert condition.value == 0
    condition.value = 3
    assert user.context.condition(HANDLE) is condition
    assert user.context.condition(HANDLE + 16).value == 0
