"""The packets of the keeper: what is packed comes back, and any bytes are a packet or Malformed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.takeover.keeper import packets as packets

KINDS = st.sampled_from(sorted(packets.KINDS))


@given(kind=KINDS, name=st.text(st.characters(codec="utf-8"), max_size=60), note=st.binary(max_size=200))
def test_unpacking_returns_the_packed_values(kind: int, name: str, note: bytes) -> None:
    assert packets.decode(packets.encode(kind, name, note)) == (kind, name, note)


@given(
    data=st.binary(max_size=40) | st.tuples(KINDS, st.binary(max_size=20)).map(lambda two: bytes([two[0]]) + two[1])
)
def test_any_bytes_are_a_packet_or_malformed(data: bytes) -> None:
    with contextlib.suppress(packets.Malformed):
        assert packets.encode(*packets.decode(data)) == data


def test_the_longest_packet_fits() -> None:
    packet = packets.encode(packets.HOLD, "n" * packets.NAME_BYTES, b"x" * packets.NOTE_BYTES)
    assert len(packet) == packets.PACKET_BYTES
    assert packets.decode(packet)[1] == "n" * packets.NAME_BYTES


@pytest.mark.parametrize(
    ("name", "note"),
    [("n" * (packets.NAME_BYTES + 1), b""), ("\u00e9" * 128, b""), ("n", b"x" * (packets.NOTE_BYTES + 1))],
)
def test_longer_packets_are_refused(name: str, note: bytes) -> None:
    with pytest.raises(ValueError, match=r"up to 255 and its notes up to 65536"):
        packets.encode(packets.HOLD, name, note)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\1", id="no length"),
        pytest.param(b"\0\0", id="kind 0"),
        pytest.param(b"\x63\0", id="unknown kind"),
        pytest.param(b"\1\5abc", id="a name cut off"),
        pytest.param(b"\1\1\xff", id="not UTF-8"),
        pytest.param(b"\1\0" + b"x" * (packets.NOTE_BYTES + 1), id="a long note"),
        pytest.param(b"\1\0" + b"x" * packets.PACKET_BYTES, id="a long packet"),
    ],
)
def test_malformed_packets_are_refused(data: bytes) -> None:
    with pytest.raises(packets.Malformed):
        packets.decode(data)
