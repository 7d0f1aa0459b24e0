"""Chunks of multiprocessors, and what partitions leave free."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe, parse_toml
from pympsd.devices.profiles import PROFILES
from pympsd.vocabulary.partitions import (
    SmPartition,
    chunk_count,
    chunk_size,
    free_chunks,
    has_remainder,
    list_multiprocessors,
    partition_id,
    protocol_2_chunks,
)

EVERY = {name: describe(name)[0] for name in PROFILES}
WITH_CHUNKS = st.sampled_from([device for device in EVERY.values() if chunk_count(device)])


@pytest.mark.parametrize(
    ("name", "size", "count"), [("H200", 8, 15), ("H100", 8, 15), ("A100", 2, 54), ("V100", 2, 0), ("P100", 2, 0)]
)
def test_the_chunks_of_a_device(name: str, size: int, count: int) -> None:
    assert (chunk_size(EVERY[name]), chunk_count(EVERY[name])) == (size, count)


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("H200", 15, 8), ("H100", 15, 8), ("B200", 18, 8), ("A100", 27, 4), ("L40S", 35, 4), ("L20", 23, 4),
        ("A10", 18, 4), ("Orin", 8, 2), ("T4", 0, 0), ("V100", 0, 0), ("P100", 0, 0),
    ],
)  # fmt: skip
def test_the_chunks_of_protocol_2(name: str, count: int, size: int) -> None:
    chunks = protocol_2_chunks(EVERY[name])
    assert len(chunks) == count
    assert {len(list_multiprocessors(EVERY[name], chunk)) for chunk in chunks} == ({size} if count else set())
    every = [unit for chunk in chunks for unit in chunk]
    assert sorted(set(every)) == every
    assert set(every) <= set(range(chunk_count(EVERY[name])))


def test_a_machine_description_sets_the_chunks_of_both_protocols() -> None:
    (device,) = parse_toml('[[device]]\nprofile = "A100"\nsm_chunks = [52, 2]\nsm_chunks_2 = [13, 8]\n')
    assert (chunk_count(device), chunk_size(device)) == (52, 2)
    assert protocol_2_chunks(device)[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert len(protocol_2_chunks(device)) == 13


@given(WITH_CHUNKS, st.data())
def test_each_multiprocessor_is_in_one_chunk(device, data) -> None:  # type: ignore[no-untyped-def]
    every = range(chunk_count(device) + 1)
    chunks = data.draw(st.sets(st.sampled_from(every)))
    mine, others = (
        list_multiprocessors(device, tuple(chunks)),
        list_multiprocessors(device, tuple(set(every) - chunks)),
    )
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
    assert all(re.fullmatch("[A-Za-z0-9_-]{36}", text) for text in ids)
    assert partition_id("a", here, "p") == partition_id("a", here, "p")
