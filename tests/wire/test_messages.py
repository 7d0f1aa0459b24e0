"""Every message is decoded as it was encoded; a body that does not fit its class is only a RemoteError."""

from __future__ import annotations

import types
import typing

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.errors import LocalError, RemoteError
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.wire import executor_messages, frames, link_messages, messages
from pympsd.wire.framing import Frame, FrameReader

CLASSES = sorted(messages._KIND_OF, key=lambda cls: messages._KIND_OF[cls])
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def _values(kind: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Build values of an annotation; supports only the types that messages use."""
    if kind is ThreadPercentage:
        return st.floats(0, 100, exclude_min=True).map(ThreadPercentage)
    if kind is ClientPriority:
        return st.integers(0, 1).map(ClientPriority)
    if attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: _values(hints[field.name]) for field in attrs.fields(kind)})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(_values, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    return {
        int: INTEGERS,
        str: TEXTS,
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        type(None): st.none(),
    }[kind]


def test_all_modules_of_messages_are_tested() -> None:
    for module in (messages, link_messages, executor_messages):
        classes = {value for value in vars(module).values() if isinstance(value, type) and value in messages._KIND_OF}
        assert classes, module.__name__


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_a_message_is_decoded_as_it_was_encoded(cls: type, data: st.DataObject) -> None:
    value = data.draw(_values(cls))
    fds = data.draw(st.integers(0, 3))
    encoded = messages.encode(value, fds)
    (frame,) = FrameReader(fds_allowed=3).feed(encoded, tuple(range(50, 50 + fds)))
    decoded = messages.decode(frame)
    assert type(decoded) is cls
    assert _comparable(decoded) == _comparable(value)
    assert frame.fds == tuple(range(50, 50 + fds))


def _comparable(value: object) -> object:
    # A field of int or float may come back as 1.0 for 1, which is equal.
    return attrs.asdict(value)  # type: ignore[call-overload, arg-type]  # every message is an attrs class


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_are_frozen(cls: type) -> None:
    assert attrs.has(cls)
    assert cls.__setattr__ is not object.__setattr__


def test_kinds_are_unique_and_above_the_operators() -> None:
    kinds = list(messages._KIND_OF.values())
    assert len(set(kinds)) == len(kinds)
    assert min(kinds) >= frames.FIRST_MESSAGE_KIND > frames.OPERATOR_DONE


def test_a_kind_cannot_be_registered_twice() -> None:
    with pytest.raises(LocalError, match="message kind 0 is taken by ClientHello"):
        messages.message(0)(type("Another", (), {}))


@given(st.integers(0, 0xFFFF).filter(lambda kind: kind not in messages._KINDS), st.binary(max_size=100))
def test_an_unknown_kind_is_a_remote_error(kind: int, body: bytes) -> None:
    with pytest.raises(RemoteError, match=f"unknown message kind {kind}"):
        messages.decode(Frame(kind, body))


@given(st.sampled_from(CLASSES), st.binary(max_size=200))
def test_any_body_is_a_message_or_a_remote_error(cls: type, body: bytes) -> None:
    _expect_message_or_remote_error(cls, body)


@given(
    st.sampled_from(CLASSES),
    st.recursive(
        st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
        max_leaves=10,
    ),
)
def test_any_packed_value_is_a_message_or_a_remote_error(cls: type, value: object) -> None:
    _expect_message_or_remote_error(cls, msgspec.msgpack.encode(value))


def _expect_message_or_remote_error(cls: type, body: bytes) -> None:
    try:
        decoded = messages.decode(Frame(messages._KIND_OF[cls], body))
    except RemoteError as error:
        assert cls.__name__ in str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert type(decoded) is cls


def test_deep_nesting_is_a_remote_error() -> None:
    # Nested arrays, deeper than any stack, in an unknown field, which the codec has to skip.
    body = b"\x81\xa1x" + b"\x91" * 500_000 + b"\xc0"
    with pytest.raises(RemoteError, match="malformed"):
        messages.decode(Frame(messages._KIND_OF[messages.ClientHello], body))


def test_a_wrong_field_is_named() -> None:
    body = msgspec.msgpack.encode({"version": 1, "client": "seven", "server_pid": 1})
    with pytest.raises(RemoteError, match=r"malformed SessionGranted.*client"):
        messages.decode(Frame(messages._KIND_OF[messages.SessionGranted], body))


def test_encoding_a_non_message_or_one_too_long_is_a_local_error() -> None:
    with pytest.raises(LocalError, match="int is not a message"):
        messages.encode(5)
    with pytest.raises(LocalError, match="over the maximum"):
        messages.encode(messages.Refused(1, "x" * (frames.MAX_BODY + 1)))


def test_a_report_of_a_device_is_flat_for_daemons_and_servers_of_earlier_versions() -> None:
    report = link_messages.MemoryReported({7: 64}, launches=12, left=1, device=2)
    (frame,) = FrameReader().feed(messages.encode(report))
    fields = {"device": 2, "clients": {7: 64}, "launches": 12, "left": 1}
    assert fields.items() <= msgspec.msgpack.decode(frame.body).items()
    assert messages.decode(Frame(frame.kind, msgspec.msgpack.encode(fields))) == report


def test_a_clients_identity_and_limits_are_fields_of_the_message_itself() -> None:
    # Daemons and servers of other versions know the fields by these names.
    admitted = {
        "client": 7,
        "pid": 100,
        "uid": 500,
        "gid": 501,
        "command": "train",
        "priority": 1,
        "environment": {},
        "namespace": 99,
        "mps_namespace": "a/b",
        "since": 5.0,
        "own": None,
        "bounds": (),
        "devices": (1,),
        "partitions": {},
        "groups": {},
        "audited": True,
        "static": False,
        "thread_percentage": 50.0,
        "memory_limits": {1: 64},
        "least_priority": 1,
    }
    kind = frames.FIRST_MESSAGE_KIND + 35
    message = messages.decode(Frame(kind, msgspec.msgpack.encode(admitted)))
    assert (message.uid, message.gid, message.devices, message.memory_limits) == (500, 501, (1,), {1: 64})
    assert msgspec.to_builtins(message, str_keys=False) == admitted
