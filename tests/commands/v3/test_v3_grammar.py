"""The grammar of protocol 3: every spelling of an option in any order, and what is refused, word for word."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.commands.grammar.strict import read_words
from pympsd.commands.grammar.syntax import Argument, CommandRefused, Flag, Option, Syntax
from pympsd.vocabulary.texts import read_boolean, read_memory, read_percentage, read_priority

CREATE = Syntax(
    "server create",
    optional=("name",),
    options={"uid": Option(int, "<n>"), "allowed-devices": Option(str, "<devices>")},
)
DELETE = Syntax("server delete", required=("name",), flags=("force",))
GET = Syntax(
    "namespace get",
    required=("name", "server", "field"),
    options={"server": Option(str, "<s>")},
    instead={"server": "server"},
)
SET = Syntax(
    "namespace set",
    required=("name",),
    needed=("server",),
    options={
        "server": Option(str, "<s>"),
        "active-thread-percentage": Option(read_percentage, "<p>"),
        "pinned-memory-limit": Option(read_memory, "<l>"),
        "client-priority": Option(read_priority, "<n>"),
        "locality-domains": Option(read_boolean, "true|false"),
    },
)


@pytest.mark.parametrize("key", ["--allowed-devices", "--allowed_devices", "allowed-devices", "allowed_devices"])
def test_an_option_in_every_spelling_and_place(key: str) -> None:
    for words in itertools.permutations(["training", f"{key}=0,1", "--uid=7"]):
        assert read_words(CREATE, words) == {"name": "training", "allowed_devices": "0,1", "uid": 7}
    if key.startswith("--"):
        assert read_words(CREATE, [key, "0,1", "training"]) == {"name": "training", "allowed_devices": "0,1"}


def test_a_value_may_hold_an_equals_sign() -> None:
    assert read_words(CREATE, ["--allowed-devices=0=4G,1=8G"]) == {"allowed_devices": "0=4G,1=8G"}
    assert read_words(DELETE, ["/etc/a=b.toml", "--force"]) == {"name": "/etc/a=b.toml", "force": True}


def test_a_positional_argument_may_be_given_as_an_option() -> None:
    expected = {"name": "hi", "server": "a", "field": "name"}
    assert read_words(GET, ["hi", "a", "name"]) == expected
    assert read_words(GET, ["hi", "name", "--server=a"]) == expected
    assert read_words(GET, ["hi", "a", "name", "--server=a"]) == expected, "the usage shows both"


@pytest.mark.parametrize(
    ("syntax", "words", "sentence"),
    [
        (
            CREATE,
            "a --size=3",
            "Unknown option '--size' of 'server create'. Options: --allowed-devices, --uid.",
        ),
        (CREATE, "a -x", "Unknown option '-x' of 'server create'. Options: --allowed-devices, --uid."),
        (CREATE, "a --uid=1 uid=2", "Option '--uid' of 'server create' is repeated."),
        (CREATE, "a --uid", "Option '--uid' of 'server create' needs a value: --uid=<n>."),
        (CREATE, "a --uid --allowed-devices=0", "Option '--uid' of 'server create' needs a value: --uid=<n>."),
        (DELETE, "a b", "'server delete' takes 1 argument, not 2."),
        (DELETE, "a --force=yes", "Option '--force' of 'server delete' takes no value."),
        (DELETE, "", "'server delete' needs <name>."),
        (GET, "hi a name --server=b", "'namespace get' has two values of <server>: 'a' and 'b'."),
        (GET, "hi pinned-memory-limit", "'namespace get' needs <name> <server> <field>."),
        (GET, "a b c d", "'namespace get' takes 3 arguments, not 4."),
        (SET, "hi", "'namespace set' needs --server=<s>."),
        (SET, "", "'namespace set' needs <name> --server=<s>."),
        (SET, "hi server=a active-thread-percentage=0", "--active-thread-percentage must be 1 to 100, not '0'."),
        (
            SET,
            "hi server=a pinned-memory-limit=4T",
            "--pinned-memory-limit must be a whole number above 0 and K, M or G, or 'unlimited'; not '4T'.",
        ),
        (SET, "hi server=a client-priority=2", "--client-priority must be 0 (normal) or 1 (below normal), not '2'."),
        (SET, "hi server=a locality-domains=yes", "--locality-domains must be true or false, not 'yes'."),
    ],
)
def test_wrong_words_are_refused(syntax: Syntax, words: str, sentence: str) -> None:
    with pytest.raises(CommandRefused) as refused:
        read_words(syntax, words.split())
    assert str(refused.value) == sentence


def test_the_usage_shows_all_options() -> None:
    assert CREATE.usage == "server create [<name>] [--uid=<n>] [--allowed-devices=<devices>]"
    assert DELETE.usage == "server delete <name> [--force]"
    assert SET.usage.startswith("namespace set <name> --server=<s> [--active-thread-percentage=<p>] ")


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["a", "--server=a", "--server", "server=b", "--client-priority=1", "client_priority=0"]),
        st.sampled_from(["--", "-", "--=", "=", "--active-thread-percentage=50.5", "pinned-memory-limit=2G"]),
        st.text(max_size=6),
    ),
    max_size=6,
)


def _names(declared: tuple[Argument, ...] | tuple[Flag, ...]) -> list[str]:
    return [entry.name for entry in declared]


@settings(max_examples=60)
@given(st.sampled_from([CREATE, DELETE, GET, SET]), WORDS)
def test_any_words_are_read_or_refused_with_a_sentence(syntax: Syntax, words: list[str]) -> None:
    options = {
        name.replace("-", "_")
        for name in (*_names(syntax.required), *_names(syntax.optional), *syntax.options, *_names(syntax.flags))
    }
    try:
        arguments = read_words(syntax, words)
    except CommandRefused as error:
        assert str(error).endswith(".")  # noqa: PT017 - reading and refusing are both right here
    except ValueError:
        assert syntax is CREATE  # its --uid is read by int() here
    else:
        assert set(arguments) <= options
        assert {name.replace("-", "_") for name in (*_names(syntax.required), *syntax.needed)} <= set(arguments)
