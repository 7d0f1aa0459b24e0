"""Order of submission: nothing that comes after a held step is issued before it passes, and nothing else waits."""

from __future__ import annotations

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.submission.submission_order import Step, SubmissionOrder
from pympsd_server.backends.interface import BackendError


@define(eq=False)
class FakeStream:
    """A stream."""

    blocking: bool


@define(eq=False)
class Issued:
    """An order, and the names of the steps it has issued."""

    default: FakeStream = field(factory=lambda: FakeStream(True))
    names: list[str] = field(factory=list)
    late: list[BackendError] = field(factory=list)
    order: SubmissionOrder = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.order = SubmissionOrder(self.late.append)
        self.order.default = self.default

    def put(
        self, name: str, stream: FakeStream | None, *after: Step, held: bool = False, alone: bool = False
    ) -> Step:
        """Submit a step."""
        step = Step(stream, lambda: self.names.append(name), held)
        self.order.submit(step, after, alone)
        return step


@pytest.fixture
def issued() -> Issued:
    """An order of its own."""
    return Issued()


def test_nothing_waits_if_nothing_is_held(issued: Issued) -> None:
    issued.put("a", issued.default)
    issued.put("b", FakeStream(True))
    assert issued.names == ["a", "b"]
    assert not issued.order.holds


def test_a_held_step_holds_its_stream_and_no_other(issued: Issued) -> None:
    stream, free = FakeStream(False), FakeStream(False)
    call = issued.put("call", stream, held=True)
    issued.put("after", stream)
    issued.put("free", free)
    issued.put("default", issued.default)
    assert issued.names == ["call", "free", "default"]
    issued.order.release(call)
    assert issued.names[-1] == "after"
    issued.order.release(call)
    assert issued.names.count("after") == 1
    assert not issued.order.holds


@pytest.mark.parametrize("default_first", [True, False])
def test_the_default_stream_and_blocking_ones_hold_each_other(issued: Issued, default_first: bool) -> None:
    lines = (issued.default, FakeStream(True)) if default_first else (FakeStream(True), issued.default)
    call = issued.put("call", lines[0], held=True)
    issued.put("after", lines[1])
    assert issued.names == ["call"]
    issued.order.release(call)
    assert issued.names == ["call", "after"]


def test_steps_are_issued_in_the_order_of_their_stream(issued: Issued) -> None:
    stream = FakeStream(False)
    first = issued.put("first", stream, held=True)
    issued.put("a", stream)
    second = issued.put("second", stream, held=True)
    issued.put("b", stream)
    issued.order.release(first)
    assert issued.names == ["first", "a", "second"]
    issued.order.release(second)
    assert issued.names == ["first", "a", "second", "b"]


def test_a_step_may_come_after_steps_of_other_streams(issued: Issued) -> None:
    first, second = FakeStream(False), FakeStream(False)
    call = issued.put("call", first, held=True)
    mark = issued.put("mark", first)
    issued.put("waits", second, mark)
    issued.put("all", None)
    issued.put("only", None, mark, alone=True)
    issued.put("at once", None, alone=True)
    assert issued.names == ["call", "at once"]
    issued.order.release(call)
    assert issued.names[2:] == ["mark", "waits", "only", "all"]


def test_an_immediate_refusal_is_raised_and_a_late_one_is_reported(issued: Issued) -> None:
    stream, error = FakeStream(False), BackendError(Result.ERROR_INVALID_VALUE, "no")

    def refuse() -> None:
        raise error

    with pytest.raises(BackendError):
        issued.order.submit(Step(stream, refuse))
    assert not issued.order.holds
    call = issued.put("call", stream, held=True)
    issued.order.submit(Step(stream, refuse))
    issued.order.release(call)
    assert issued.late == [error]
