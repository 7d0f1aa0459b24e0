"""The table of what a user can take from the daemon: values that are read, and the bounds that follow from it."""

from __future__ import annotations

import pytest

from pympsd.vocabulary.shares import (
    BUFFERS,
    BY_NAME,
    CONNECTIONS,
    DESCRIPTORS,
    RESOURCES,
    SERVERS,
    BadResourceShare,
    SharedResource,
    Shares,
    read_share,
    read_shares,
)


def test_shares_are_read_from_several_texts_of_which_the_last_one_counts() -> None:
    assert read_shares(["servers=16,buffers=64M", " namespaces=0", "servers=3"]) == {
        "servers": 3,
        "buffers": 64 << 20,
        "namespaces": 0,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "server=1",
            "users have no share of 'server'; did you mean servers? Users have shares of servers, processes, ",
        ),
        ("servers", "a user's share must be RESOURCE=VALUE, as in servers=16, not 'servers'"),
        ("servers=", "the share of servers must be a number from 0 to 256, not ''"),
        ("servers=257", "the share of servers must be a number from 0 to 256, not '257'"),
        ("servers=-1", "the share of servers must be a number from 0 to 256, not '-1'"),
        ("servers=1K", "the share of servers must be a number from 0 to 256, not '1K'"),
        ("connections=3", "the share of connections must be a number from 16 to 1048576, not '3'"),
        ("buffers=1K", "the share of buffers must be a number of bytes, optionally followed by K, M or G, from "),
        ("", "a user's share must be RESOURCE=VALUE, as in servers=16, not ''"),
    ],
)
def test_an_invalid_share_is_refused_with_the_allowed_values(text: str, sentence: str) -> None:
    with pytest.raises(BadResourceShare) as refusal:
        read_shares([text])
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize("value", [True, 1.5, None, [1], "٣"])
def test_a_configuration_files_share_is_a_number(value: object) -> None:
    assert read_share("servers", 5) == 5
    with pytest.raises(BadResourceShare):
        read_share("servers", value)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda entry: entry.name)
def test_a_default_is_a_value_that_can_be_set(resource: SharedResource) -> None:
    for descriptors in (64, 1024, 1 << 20):
        share = Shares(descriptors=descriptors).share(resource)
        assert read_share(resource.name, share) == share
        assert share <= resource.share
    assert BY_NAME[resource.name] is resource


def test_reserves_leave_room_for_users_own_servers_and_for_root() -> None:
    shares = Shares()
    assert (shares.count_for_users(SERVERS, own=False), shares.count_for_users(SERVERS), shares.total(SERVERS)) == (
        128,
        224,
        256,
    )


@pytest.mark.parametrize(
    ("descriptors", "of_sockets", "of_connections"), [(1024, 128, 128), (4096, 512, 512), (1 << 20, 1024, 4096)]
)
def test_few_descriptors_make_small_shares(descriptors: int, of_sockets: int, of_connections: int) -> None:
    shares = Shares(descriptors=descriptors)
    assert (shares.share(DESCRIPTORS), shares.share(CONNECTIONS)) == (of_sockets, of_connections)


def test_a_share_that_is_set_holds_whatever_the_descriptors_are() -> None:
    assert Shares({"descriptors": 5000, "buffers": 5 << 20}).share(DESCRIPTORS) == 5000
    assert Shares({"buffers": 5 << 20}).share(BUFFERS) == 5 << 20
