"""The line of every key of a TOML text."""

from __future__ import annotations

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.configuration.positions import line_of, positions

TEXT = '''\
# a comment with = and [brackets]
schema_version = "1.0"

[servers.serve]   # a header
allowed_devices = """
[not.a.header]
key = 1
"""
list = [
  "a", # = [x]
  "b",
]
inline = { one = 1, two = { three = 3 } }
dotted."quoted key".deep = 1
[[servers.exact.devices]]
uuid = "GPU-0"
[[servers.exact.devices.sm_partitions]]
name = "large"
[[servers.exact.devices.sm_partitions]]
name = "small"
[[servers.exact.devices]]
uuid = "GPU-1"
[[servers.exact.devices.sm_partitions]]
name = "other"
'''


def test_every_key_has_its_line() -> None:
    lines = positions(TEXT)
    assert lines["schema_version",] == 2
    assert lines["servers", "serve"] == 4
    assert lines["servers", "serve", "allowed_devices"] == 5
    assert lines["servers", "serve", "list"] == 9
    assert lines["servers", "serve", "inline", "two", "three"] == 13
    assert lines["servers", "serve", "dotted", "quoted key", "deep"] == 14
    exact = ("servers", "exact", "devices")
    assert lines[(*exact, 0, "uuid")] == 16
    assert lines[(*exact, 0, "sm_partitions", 1, "name")] == 20
    assert lines[(*exact, 1, "uuid")] == 22
    assert lines[(*exact, 1, "sm_partitions", 0, "name")] == 24
    assert ("not",) not in lines


def test_what_is_missing_is_placed_at_the_table_above_it() -> None:
    lines = positions(TEXT)
    assert line_of(lines, ("servers", "serve", "uid")) == 4
    assert line_of(lines, ("features",)) == 1


KEYS = st.sampled_from(["a", "b", '"c d"', "'e.f'", "g-h", "_i"])
VALUES = st.sampled_from(["1", '"x"', '"""\n# [a]\nb = 1\n"""', "[\n1,\n2]", "'''\n'''", "{ x = 1 }", "true"])


@settings(max_examples=50)
@given(st.lists(st.tuples(KEYS, VALUES), unique_by=lambda pair: pair[0], max_size=6))
def test_any_values_are_passed_over(pairs: list[tuple[str, str]]) -> None:
    text = "[t]\n" + "".join(f"{key} = {value} # end\n" for key, value in pairs)
    lines = positions(text)
    for key in tomllib.loads(text)["t"]:
        line = text.split("\n")[lines["t", key] - 1]
        assert list(tomllib.loads(line.partition("=")[0] + "= 0")) == [key]
