"""Cooperative launches: all blocks together, or not at all."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import Launch
from tests.backends.contract.port_user import PTX, Gate, Notified, PortUser
from tests.backends.contract.test_memory import expect_refusal

TOO_LARGE = Result.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
THREADS = (1024, 1, 1)
"""Two blocks of these fill a multiprocessor of the device of these tests."""


@pytest.mark.parametrize(("multiprocessors", "most"), [(0, 264), (4, 8)])
def test_a_grid_that_the_context_cannot_hold_is_too_large(device: Device, multiprocessors: int, most: int) -> None:
    user = PortUser.on(device, multiprocessors=multiprocessors)
    with expect_refusal(TOO_LARGE):
        user.launch("empty", grid=(most + 1, 1, 1), block=THREADS, cooperative=True)
    user.launch("empty", grid=(most, 1, 1), block=THREADS, cooperative=True)
    user.launch("empty", grid=(most + 1, 1, 1), block=THREADS)
    assert user.synchronize() == Result.SUCCESS


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (7, 33), (264, 1024), (4000, 32)])
def test_blocks_meet_again_and_again(user: PortUser, blocks: int, threads: int) -> None:
    words = user.words()
    assert user.module
    free, _ = user.context.memory_info()
    user.launch("meet", words, 4, grid=(blocks, 1, 1), block=(threads, 1, 1), cooperative=True)
    assert user.synchronize() == Result.SUCCESS
    assert user.word(words) == 4 * blocks * threads
    assert user.context.memory_info()[0] == free
    if user.device.capabilities.sees_blocks:
        assert [batch.blocks for batch in user.device.batch_traces if batch.kernel == "meet"] == [blocks]


def test_blocks_that_need_much_memory_meet_too(user: PortUser) -> None:
    """They do not fit one batch of the emulated device; they must be resident together nevertheless."""
    wide = PTX.replace(b"meet(.param", b"wide(.param").replace(
        b".reg .b32 %r<12>;", b".local .align 8 .b8 frame[65536]; .reg .b32 %r<12>;"
    )
    module, word = user.context.load_module(wide), user.words()
    index = [function.name for function in module.functions].index("wide")
    assert module.functions[index].attributes["LOCAL_SIZE_BYTES"] == 65536
    parameters = struct.pack("=QI", word, 3)
    user.default.launch(Launch(module, index, (16, 1, 1), THREADS, 0, parameters, cooperative=True))
    assert user.synchronize() == Result.SUCCESS
    assert user.word(word) == 3 * 16 * 1024
    if user.device.capabilities.sees_blocks:
        assert sum(batch.blocks for batch in user.device.batch_traces if batch.kernel == "wide") == 16


def test_two_cooperative_launches_do_not_meet_each_other(user: PortUser) -> None:
    words, streams = user.words(2), [user.context.create_stream(True, 0) for _ in range(2)]
    for number, stream in enumerate(streams):
        shape = {"grid": (60 + number, 1, 1), "block": (64, 1, 1), "cooperative": True}
        user.launch("meet", words + 4 * number, 50, stream=stream, **shape)
    assert user.synchronize() == Result.SUCCESS
    assert [user.word(words + 4 * number) for number in range(2)] == [50 * 60 * 64, 50 * 61 * 64]


def test_no_block_begins_before_there_is_room_for_all(device: Device) -> None:
    user = PortUser.on(device, multiprocessors=2)
    gate, word = Gate.running(user, user.context.create_stream(True, 0)), user.words()
    stream = user.context.create_stream(True, 0)
    user.launch("meet", word, 1, grid=(4, 1, 1), block=THREADS, stream=stream, cooperative=True)
    notified = Notified()
    stream.notify(notified)
    assert notified.stays_silent()
    assert "meet" not in {batch.kernel for batch in device.batch_traces}
    gate.open()
    assert notified.wait() == Result.SUCCESS
    assert user.word(word) == 4 * 1024


@pytest.mark.needs("passes_waiting_kernels")
def test_a_waiting_cooperative_launch_does_not_block_what_it_waits_for(device: Device) -> None:
    """It waits for a kernel that waits for one that has not begun; that one must not wait for it."""
    user = PortUser.on(device, multiprocessors=2)
    word, streams = user.words(), [user.context.create_stream(True, 0) for _ in range(3)]
    gate = Gate.running(user, streams[0])
    user.launch("meet", word, 1, grid=(4, 1, 1), block=THREADS, stream=streams[1], cooperative=True)
    notified = Notified()
    streams[1].notify(notified)
    assert notified.stays_silent()
    user.launch("store", gate.word, 1, stream=streams[2])
    assert notified.wait() == Result.SUCCESS


def test_a_normal_launch_has_no_workspace(user: PortUser) -> None:
    user.launch("meet", user.words(), 1)
    assert user.synchronize() == Result.ERROR_ILLEGAL_ADDRESS
