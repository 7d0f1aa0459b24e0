"""Chunks of multiprocessors, and what partitions leave free."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe
from pympsd.vocabulary.partitions import (
    SmPartition,
    chunk_count,
    chunk_size,
    free_chunks,
    has_remainder,
    multiprocessors,
    partition_id,
)

EVERY = {name: describe(name)[0] for name in ("H200", "H100", "A100", "V100", "P100")}
WITH_CHUNKS = st.sampled_from([device for device in EVERY.values() if chunk_count(device)])


@pytest.mark.parametrize(
    ("name", "size", "count"), [("H200", 8, 15), ("H100", 8, 15), ("A100", 2, 54), ("V100", 2, 0), ("P100", 2, 0)]
)
def test_the_chunks_of_a_device(name: str, size: int, count: int) -> None:
    assert (chunk_size(EVERY[name]), chunk_count(EVERY[name])) == (size, count)


@given(WITH_CHUNKS, st.data())
def test_each_multiprocessor_is_in_one_chunk(device, data) -> None:  # type: ignore[no-untyped-def]
    every = range(chunk_count(device) + 1)
    chunks = data.draw(st.sets(st.sampled_from(every)))
    mine, others = multiprocessors(device, tuple(chunks)), multiprocessors(device, tuple(set(every) - chunks))
    assert sorted((*mine, *others)) == list(range(device.multiprocessors))
    assert list(mine) == sorted(mine)


@given(WITH_CHUNKS, st.data())
def test_what_partitions_leave_free(device, data) -> None:  # type: ignore[no-untyped-def]
    every = list(range(chunk_count(device) + has_remainder(device)))
    order = data.draw(st.permutations(every))
    cut, end = sorted(data.draw(st.tuples(st.integers(0, len(every)), st.integers(0, len(every)))))
    partitions = [SmPartition("p", 0, tuple(order[:cut])), SmPartition("q", 0, tuple(order[cut:end]))]
    assert free_chunks(device, partitions) == tuple(sorted(order[end:]))


def test_an_id_tells_servers_devices_and_names_apart() -> None:
    here, there = describe("2xH200")
    ids = {partition_id(server, device, name) for server in "ab" for device in (here, there) for name in "pq"}
    assert len(ids) == 8
    assert all(re.fullmatch("[A-Za-z0-9_-]{36}", each) for each in ids)
    assert partition_id("a", here, "p") == partition_id("a", here, "p")
