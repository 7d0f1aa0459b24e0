"""Each device owns a window of addresses: no two overlap, and an address gives its device."""

from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.device_properties import WINDOW_BASE, WINDOW_BITS, DeviceProperties, ordinal_of, window_of

ORDINALS = st.integers(0, 63)


@given(ORDINALS, st.integers(0, (1 << WINDOW_BITS) - 1))
def test_an_address_gives_its_device(ordinal: int, offset: int) -> None:
    assert ordinal_of(window_of(ordinal) + offset) == ordinal


@given(ORDINALS)
def test_windows_lie_side_by_side(ordinal: int) -> None:
    assert window_of(ordinal + 1) - window_of(ordinal) == 1 << WINDOW_BITS


@given(st.integers(0, WINDOW_BASE - 1))
def test_an_address_below_every_window_has_no_device(address: int) -> None:
    assert ordinal_of(address) < 0


def test_the_windows_of_32_devices_are_user_space_addresses() -> None:
    # More than any host has; an emulated machine may have 64, whose addresses are the emulator's own.
    assert window_of(32) == 1 << 47


def test_volta_begins_at_7_0() -> None:
    def device_of(*capability: int) -> DeviceProperties:
        return DeviceProperties("n", "GPU-0", "0000:00.06.00", (capability[0], capability[1]), 8, 1 << 30, {})

    assert [device_of(*c).is_volta_or_newer for c in ((6, 2), (7, 0), (9, 0), (10, 0))] == [False, True, True, True]
