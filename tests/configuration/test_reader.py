"""A configuration file: what it says, and every error in it with its line and key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.configuration.plan import FileContext, Plan, ServerPlan
from pympsd.configuration.reader import BadFile, read_plan
from pympsd.configuration.rules import quote
from pympsd.configuration.show import render_file
from pympsd.devices.machine import describe
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import CgroupLimit, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import partition_name_problem
from pympsd.vocabulary.rules import KINDS, Condition, Rule

HERE = FileContext(describe("2xH200"), 1000, pipe_directory="/run/p")
DEVICES = 'a text such as "0,1", or a list of one text or more, such as ["0", "1"]'
GIB = 1 << 30


def _read(text: str, **more: Any) -> Plan:
    return read_plan(f'schema_version = "1.0"\n{text}'.encode(), FileContext(**{**_fields(), **more}))[0]


def _fields() -> dict[str, Any]:
    return {"devices": HERE.devices, "uid": HERE.uid, "pipe_directory": HERE.pipe_directory}


def _errors(text: str, **more: Any) -> list[str]:
    with pytest.raises(BadFile) as bad:
        read_plan(text.encode(), FileContext(**{**_fields(), **more}))
    return [problem.render("F") for problem in bad.value.problems]


def test_servers_and_namespaces() -> None:
    uuid = HERE.devices[1].uuid
    plan = _read(f"""
[servers.serve]
allowed_devices = "0"
active_thread_percentage = "10"
uid = 1000
[servers.serve.namespaces.chat]
active_thread_percentage = "50"
pinned_memory_limit = "40G"
[servers.exact]
allowed_devices = ["{uuid}", "0"]
client_priority = 1
[servers.exact.namespaces.half]
pinned_memory_limit = "1=4G,0=unlimited"
active_thread_percentage = 33.5
[servers.plain]
[features.context-share]
enabled = true
default_socket = "on"
[features.memacct]
enabled = false
""")
    assert plan.servers == {
        "serve": ServerPlan(
            "serve",
            1000,
            (0,),
            {
                "chat": Limits(percentages(50.0), {0: PinnedMemory(40 * GIB), 1: PinnedMemory(40 * GIB)}, None),
                "default": Limits(percentages(10.0)),
            },
        ),
        "exact": ServerPlan(
            "exact",
            None,
            (1, 0),
            {
                "half": Limits(percentages(33.5), {0: PinnedMemory(4 * GIB)}),
                "default": Limits(client_priority=ClientPriority(1)),
            },
        ),
        "plain": ServerPlan("plain"),
    }


def test_limits_by_device_count_as_the_clients_of_the_server_and_those_of_rules_as_the_daemon() -> None:
    plan = _read("""
[servers.a]
allowed_devices = "1"
pinned_memory_limit = "0=4G"
pympsd.max_pinned_memory_limit = "0=4G"
namespaces.hi = { pinned_memory_limit = "0=4G", pympsd.total_memory_limit = "0=4G" }
[[rules]]
pinned_memory_limit = "0=4G"
[[cgroups]]
path = "/batch"
hard_limit = "0=4G"
""")
    server, four = plan.servers["a"], PinnedMemory(4 * GIB)
    assert server.maximum.pinned_memory == server.namespaces["default"].pinned_memory == {1: four}
    assert server.namespaces["hi"] == Limits(pinned_memory={1: four}, total_memory={1: four})
    assert [rule.limits.pinned_memory for rule in plan.rules or ()] == [{0: four}]
    assert plan.cgroups == {"/batch": {0: CgroupLimit(four)}}
    errors = _errors("""schema_version = "1.0"
[servers.a]
allowed_devices = "1"
pinned_memory_limit = "1=4G"
pympsd.max_pinned_memory_limit = "1=unlimited"
namespaces.hi.pinned_memory_limit = "7=4G"
""")
    of_this = f"of this server; devices: 0 ({HERE.devices[1].uuid})"
    assert errors == [
        f"F:4: servers.a.pinned_memory_limit: no device '1' {of_this}",
        f"F:5: servers.a.pympsd.max_pinned_memory_limit: no device '1' {of_this}",
        f"F:6: servers.a.namespaces.hi.pinned_memory_limit: no device '7' {of_this}",
    ]


def test_the_table_of_default_beats_the_servers_own_keys_with_a_warning() -> None:
    text = """schema_version = "1.0"
[servers.a]
active_thread_percentage = "20"
client_priority = "1"
[servers.a.namespaces.default]
active_thread_percentage = "30"
"""
    plan, warnings = read_plan(text.encode(), HERE)
    assert plan.servers["a"].namespaces == {"default": Limits(percentages(30.0), None, ClientPriority(1))}
    assert [warning.render("F") for warning in warnings] == [
        "F:3: servers.a.active_thread_percentage is beaten by that of namespaces.default"
    ]


def test_an_unlimited_default_next_to_limited_namespaces_gets_a_warning() -> None:
    text = 'schema_version = "1.0"\n[servers.a.namespaces.b]\nactive_thread_percentage = 5\n'
    (warning,) = read_plan(text.encode(), HERE)[1]
    assert warning.render("F") == (
        "F:2: servers.a: namespace default has no limits, and others have; namespaces.default may set them"
    )


def _partition(*texts: str) -> str:
    """Return a line with SM partitions of device 0."""
    return f"devices = [{{ uuid = '0', sm_partitions = [{', '.join(f'{{ {text} }}' for text in texts)}] }}]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('active_thread_percentage = "0"', 'servers.a.active_thread_percentage must be 1 to 100, not "0"'),
        ("active_thread_percentage = nan", "servers.a.active_thread_percentage must be 1 to 100, not NaN"),
        ("active_thread_percentage = true", "servers.a.active_thread_percentage must be text or a whole number or a"),
        (
            'pinned_memory_limit = "4T"',
            "servers.a.pinned_memory_limit must be a whole number above 0 and K, M or G, or 'unlimited'; not \"4T\"",
        ),
        ("pinned_memory_limit = 4", "servers.a.pinned_memory_limit must be text, not 4"),
        ('client_priority = "2"', 'servers.a.client_priority must be 0 (normal) or 1 (below normal), not "2"'),
        ("percent = 5", "servers.a.percent is not a key of a server; the keys are allowed_devices, uid, "),
        (
            "active_thread_percent = 5",
            "servers.a.active_thread_percent is not a key of a server; did you mean active",
        ),
        ('locality_domains = "true"', 'servers.a.locality_domains must be true or false, not "true"'),
        ("locality_domains = true", "servers.a.locality_domains: locality domains are not supported yet"),
        ('allowed_devices = "GPU-dead"', "servers.a.allowed_devices: no device 'GPU-dead'; devices: 0 (GPU-"),
        ('allowed_devices = "0,0"', "servers.a.allowed_devices names a device twice"),
        ("allowed_devices = 0", 'servers.a.allowed_devices must be a text such as "0,1", or a list of one text or '),
        ("allowed_devices = []", f"servers.a.allowed_devices must be {DEVICES}, not []"),
        ("allowed_devices = [0]", f"servers.a.allowed_devices must be {DEVICES}, not [0]"),
        ("uid = 7", "servers.a.uid must be 1000, because this daemon can serve only its own user; not 7"),
        ("uid = true", "servers.a.uid must be a user's number, not true"),
        ("namespaces = 1", "servers.a.namespaces must be a table, not 1"),
        ("namespaces.b = 1", "servers.a.namespaces.b must be a table, not 1"),
        ('namespaces.b.pympsd.sm_partition = "X"', "servers.a.namespaces.b.pympsd.sm_partition must be none or the"),
        (
            "namespaces.b.pympsd.total_memory_limit = 4",
            "servers.a.namespaces.b.pympsd.total_memory_limit must be text",
        ),
        (
            "namespaces.b.pympsd.total = 4",
            "servers.a.namespaces.b.pympsd.total is not a key of pympsd",
        ),
        (
            "namespaces.b.uid = 1",
            "servers.a.namespaces.b.uid is not a key of a namespace; the keys are pinned_memory",
        ),
        ("namespaces.B.client_priority = 1", "Bad name 'B': 1 to 64 lowercase letters, digits and underscores"),
        ("devices = 1", "servers.a.devices must be tables, each under [[servers.a.devices]], not 1"),
        ("devices = [{}]", "servers.a.devices.0.uuid is missing: the UUID of the device"),
        ("devices = [{ uuid = 0 }]", "servers.a.devices.0.uuid must be the UUID of a device, a text, not 0"),
        ('devices = [{ uuid = "GPU-0" }]', "servers.a.devices.0.uuid: no device 'GPU-0'; devices: 0 (GPU-"),
        (
            'devices = [{ uuid = "0", name = "x" }]',
            "servers.a.devices.0.name is not a key of a server's device; the keys",
        ),
        (_partition("chunks = 4"), "servers.a.devices.0.sm_partitions.0.name: a name is needed"),
        (_partition('name = "P", chunks = 4'), "servers.a.devices.0.sm_partitions.0.name: Bad name 'P': 1 to 64"),
        (_partition('name = "p"'), "servers.a.devices.0.sm_partitions.0.chunks is missing: the number of"),
        (
            _partition('name = "p", chunks = 0'),
            "servers.a.devices.0.sm_partitions.0.chunks must be a number from 1 to 99999, not 0",
        ),
        (
            _partition('name = "p", chunks = "4"'),
            "servers.a.devices.0.sm_partitions.0.chunks must be a number from 1 to",
        ),
        (
            _partition('name = "p", chunks = 1, include_remainder = 1'),
            "servers.a.devices.0.sm_partitions.0.include_remainder must be true or",
        ),
        (_partition('name = "p", chunks = 16'), "servers.a.devices: the SM partitions of device 0 have 16 chunks"),
        (
            _partition(*['name = "p", chunks = 1'] * 2),
            "servers.a.devices: two SM partitions of device 0 have the name p",
        ),
        (
            _partition(*(f'name = "{name}", chunks = 1, include_remainder = true' for name in "pq")),
            "servers.a.devices: one SM partition of device 0 can have include_remainder",
        ),
    ],
)
def test_an_error_is_reported_with_its_line_and_key(line: str, message: str) -> None:
    (error,) = _errors(f'schema_version = "1.0"\n[servers.a]\n# comment\n{line}\n')
    assert error.startswith(f"F:4: {message}")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (
            '[servers.a.namespaces.b]\npympsd.total_memory_limit = "4G"',
            "servers.a.namespaces.b.pympsd.total_memory_limit",
        ),
        ('[servers.a]\nactive_thread_percentage = "0=50"', "servers.a.active_thread_percentage"),
        (
            '[servers.a]\npympsd.max_active_thread_percentage = "0=50"',
            "servers.a.pympsd.max_active_thread_percentage",
        ),
        ('[[rules]]\nactive_thread_percentage = "0=50"', "rules.0.active_thread_percentage"),
        ('[servers.a.namespaces.b]\npympsd.sm_partition = "p"', "servers.a.namespaces.b.pympsd.sm_partition"),
        ("[servers.a]\n" + _partition('name = "p", chunks = 1'), "servers.a.devices.0.sm_partitions"),
        ("[features.memacct]\nenabled = true", "features.memacct.enabled"),
        ("[features.memacct]\naudit_log = true", "features.memacct.audit_log"),
    ],
)
def test_limits_that_the_drivers_own_server_lacks_are_refused(line: str, key: str) -> None:
    text = f'schema_version = "1.0"\n{line}\n'
    (error,) = _errors(text, has_own_servers=False)
    assert error.startswith(f"F:3: {key} is not possible with the driver's own server")
    read_plan(text.encode(), HERE)


def test_all_that_is_wrong_with_partitions_is_reported_together() -> None:
    errors = _errors("""schema_version = "1.0"
[[servers.a.devices]]
uuid = "0"
[[servers.a.devices.sm_partitions]]
name = "p"
chunks = 0
include_remainder = 1
[[servers.a.devices.sm_partitions]]
name = "p"
chunk = 1
[[servers.a.devices]]
[[servers.a.devices.sm_partitions]]
name = "P"
chunks = "1"
""")
    place = "servers.a.devices.0.sm_partitions"
    assert errors == [
        "F:2: servers.a.devices: two SM partitions of device 0 have the name p",
        f"F:6: {place}.0.chunks must be a number from 1 to 99999, not 0",
        f"F:7: {place}.0.include_remainder must be true or false, not 1",
        f"F:8: {place}.1.chunks is missing: the number of chunks",
        f"F:10: {place}.1.chunk is not a key of an SM partition; did you mean chunks?",
        "F:11: servers.a.devices.1.uuid is missing: the UUID of the device",
        f"F:13: servers.a.devices.1.sm_partitions.0.name: {partition_name_problem('P').rstrip('.')}",
        'F:14: servers.a.devices.1.sm_partitions.0.chunks must be a number from 1 to 99999, not "1"',
    ]


def test_a_namespace_bound_to_a_partition_that_is_not_there_is_warned_of() -> None:
    text = 'schema_version = "1.0"\n[servers.a]\n' + _partition('name = "p", chunks = 1')
    text += '\nnamespaces.b.pympsd.sm_partition = "p"\nnamespaces.c.pympsd.sm_partition = "nope"\n'
    (warning,) = read_plan(text.encode(), HERE)[1]
    assert warning.render("F") == (
        "F:5: Server 'a' has no SM partition 'nope' yet; until it is created, clients of namespace 'c' get no context"
    )
    assert read_plan(text.encode(), FileContext(**_fields(), partitions={"a": {"nope"}}))[1] == ()


def test_a_file_that_is_not_utf_8_is_refused_with_its_line_and_a_byte_order_mark_is_accepted() -> None:
    text = 'schema_version = "1.0"\n[servers.a]\n# caf\u00e9\n'
    with pytest.raises(BadFile) as caught:
        read_plan(text.encode("latin-1"), HERE)
    (problem,) = caught.value.problems
    assert problem.render("F") == "F:3: not TOML, because it is not UTF-8: invalid continuation byte"
    assert read_plan(text.encode("utf-8-sig"), HERE) == read_plan(text.encode(), HERE)


@pytest.mark.parametrize("number", ["9" * 3000, f"0x{'f' * 9000}"], ids=["3000 digits", "36000 bits"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[servers.a]\nactive_thread_percentage = N", "servers.a.active_thread_percentage must be 1 to 100, not "),
        (
            "[servers.a]\nclient_priority = N",
            "servers.a.client_priority must be 0 (normal) or 1 (below normal), not ",
        ),
        ("[servers.a]\nuid = N", "servers.a.uid must be a user's number, not "),
        ("[servers.a]\nallowed_devices = [N]", f"servers.a.allowed_devices must be {DEVICES}, not "),
        (
            "[servers.a]\npympsd.max_active_thread_percentage = N",
            "servers.a.pympsd.max_active_thread_percentage must be 1 to 100, not ",
        ),
        (
            "[servers.a]\n" + _partition('name = "p", chunks = N'),
            "servers.a.devices.0.sm_partitions.0.chunks must be a number from 1 to 99999, not ",
        ),
        ("[[rules]]\nactive_thread_percentage = N", "rules.0.active_thread_percentage must be 1 to 100, not "),
        ("[[rules]]\nuser = [N]", "rules.0.user must be a user's name on this machine, or its number, not "),
        ("[[rules]]\nslurm_job = {}\ngroup = N", "rules.0.slurm_job must be a text or a number, or a list"),
    ],
)
def test_a_number_of_thousands_of_digits_is_an_error_like_others(line: str, message: str, number: str) -> None:
    text = f'schema_version = "1.0"\n{line}\n'.replace("= N", f"= {number}").replace("[N]", f"[{number}]")
    error = _errors(text)[0]
    assert error.startswith((f"F:3: {message}", f"F:4: {message}"))
    assert len(error) < 250


def test_a_server_whose_name_is_a_number_of_thousands_of_digits() -> None:
    first, *_ = _errors(f'schema_version = "1.0"\n[servers.uid_{"9" * 5000}]\n')
    assert first.startswith("F:2: Bad name 'uid_99")


def test_a_number_that_python_does_not_read_gets_our_own_message() -> None:
    text = f'schema_version = "1.0"\n[servers.a]\nuid = {"9" * 5000}\n'
    assert _errors(text) == ["F:1: not TOML: a number of thousands of digits"]


def test_percentages_by_device() -> None:
    text = """schema_version = "1.0"
[[rules]]
active_thread_percentage = "1=20"
[servers.a]
allowed_devices = "1"
active_thread_percentage = "0=50"
pympsd.max_active_thread_percentage = "0=40"
[servers.b]
active_thread_percentage = 30
"""
    plan, _ = read_plan(text.encode(), HERE)
    fifty, forty, twenty = (ThreadPercentage(value) for value in (50.0, 40.0, 20.0))
    server = plan.servers["a"]
    assert server.namespaces["default"].thread_percentage == {1: fifty}, "its device 0 is the daemon's 1"
    assert server.maximum.thread_percentage == {1: forty}
    assert [rule.limits.thread_percentage for rule in plan.rules or ()] == [{1: twenty}]
    assert plan.servers["b"].namespaces["default"].thread_percentage == percentages(30.0)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ('"0=50,1=0"', 'servers.a.active_thread_percentage must be 1 to 100, not "0=50,1=0"'),
        (
            '"0=50,20"',
            "servers.a.active_thread_percentage must be one percentage for all devices, or one a device as in 0=50",
        ),
        ('"7=50"', "servers.a.active_thread_percentage: no device '7'"),
    ],
)
def test_other_percentages_by_device_are_refused(value: str, allowed: str) -> None:
    (error,) = _errors(f'schema_version = "1.0"\n[servers.a]\nactive_thread_percentage = {value}\n')
    assert error.startswith(f"F:3: {allowed}")


def test_partitions_are_on_devices_of_their_server() -> None:
    text = 'schema_version = "1.0"\n[servers.a]\nallowed_devices = "1"\n' + _partition('name = "p", chunks = 1')
    with pytest.raises(BadFile) as caught:
        read_plan(text.encode(), HERE)
    (problem,) = caught.value.problems
    assert problem.render("F") == "F:4: servers.a.devices.0.uuid: the server's allowed_devices lack it"


def test_partitions_of_all_servers_fit_a_device_together() -> None:
    lines = ['schema_version = "1.0"']
    for name in "ab":
        lines += [f"[servers.{name}]", _partition('name = "p", chunks = 8')]
    with pytest.raises(BadFile) as caught:
        read_plan("\n".join(lines).encode(), HERE)
    (problem,) = caught.value.problems
    assert problem.text == (
        "servers.b.devices: the SM partitions of device 0 have 16 chunks together, and it has 15 (servers: a, b)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'F:1: schema_version is missing; it is "1.0"'),
        ('\nschema_version = "2.0"', 'F:2: schema_version is "1.0", not "2.0"'),
        (
            'schema_version = "1.0"\nserver = 1',
            "F:2: server is not a key of a configuration file; did you mean servers?",
        ),
        ('schema_version = "1.0"\nservers = 1', "F:2: servers must be a table, not 1"),
        (
            'schema_version = "1.0"\n[[cgroups]]\nhard_limit = "4G"',
            "F:2: cgroups.0.path must be the full path of a cgr",
        ),
        (
            'schema_version = "1.0"\n[[cgroups]]\npath = "b"\nhard_limit = "4G"',
            "F:3: cgroups.0.path must be the full path",
        ),
        (
            'schema_version = "1.0"\n[[cgroups]]\npath = "/b"\nhard_limit = "0=1G,0=2G"',
            "F:4: cgroups.0.hard_limit must be one limit for all devices, or one a device as in 0=4G,1=8G; not",
        ),
        ('schema_version = "1.0"\n[[cgroups]]\npath = "/b"', "F:2: cgroups.0 has a hard_limit or a soft_limit"),
        (
            'schema_version = "1.0"\n[[cgroups]]\npath = "/b"\nhard_limit = "4G"\nsoft_limit = "8G"',
            'F:5: cgroups.0.soft_limit must be at most the hard limit, 4G, not "8G"',
        ),
        (
            'schema_version = "1.0"\n' + 2 * '[[cgroups]]\npath = "/b"\nsoft_limit = "1G"\n',
            "F:6: cgroups.1.path names /b a second time",
        ),
        ('schema_version = "1.0"\n[cgroups]', "F:2: cgroups must be tables, each under [[cgroups]], not a table"),
        (
            'schema_version = "1.0"\n[features.x]',
            "F:2: features.x is not a key of features; the keys are memacct, con",
        ),
        (
            'schema_version = "1.0"\n[features.memacct]\naudit_log = 1',
            "F:3: features.memacct.audit_log must be true or fa",
        ),
        (
            'schema_version = "1.0"\n[features.memacct]\nenabled = 1',
            "F:3: features.memacct.enabled must be true or fals",
        ),
        (
            'schema_version = "1.0"\n[features.context-share]\nenabled = false',
            "F:3: features.context-share.enabled: context-share cannot be disabled",
        ),
        ('schema_version = "1.0"\n[servers.Train-1]', "F:2: Bad name 'Train-1': 1 to 64 lowercase"),
        ('schema_version = "1.0"\nx = [1,\n2', "F:3: not TOML: "),
        ('schema_version = "1.0"\n[servers\n', "F:2: not TOML: "),
        ('schema_version = "1.0"\nx = ' + "[" * 9999 + "]" * 9999, "F:1: nested too deeply for a configuration file"),
    ],
)
def test_errors_of_the_whole_file(text: str, message: str) -> None:
    (error,) = _errors(text)
    assert error.startswith(message)


def test_all_errors_are_reported_together_in_order() -> None:
    errors = _errors("[servers.A]\nuid = -1\n[servers.b]\nclient_priority = 3\n")
    assert [error.split(":")[1] for error in errors] == ["1", "1", "2", "4"]


def test_multiuser_servers_are_roots() -> None:
    assert _read("[servers.a]\nuid = 0", uid=0, multiuser=True).servers["a"].uid == 0
    (error,) = _errors('schema_version = "1.0"\n[servers.a]\nuid = 7', uid=0, multiuser=True)
    assert error == "F:3: servers.a.uid must be 0 with --multiuser, because its servers are root's; not 7"


def test_a_path_that_is_too_long_for_a_socket_is_refused() -> None:
    (error,) = _errors('schema_version = "1.0"\n[servers.a.namespaces.b]', pipe_directory="/" + "p" * 100)
    assert "is 113 bytes long; at most 107 are possible: choose a shorter name or CUDA_MPS_PIPE_DIRECTORY" in error


@settings(max_examples=50)
@given(
    st.recursive(
        st.one_of(st.integers(), st.booleans(), st.sampled_from(["a", "0", "4G", "1"])),
        lambda inner: st.dictionaries(
            st.sampled_from(["servers", "a", "namespaces", "default", "features", "memacct", "uid", "enabled"]),
            inner,
            max_size=3,
        ),
        max_leaves=8,
    )
)
def test_any_tables_are_a_plan_or_errors(value: Any) -> None:
    text = "".join(f"{key} = {_toml(item)}\n" for key, item in value.items()) if isinstance(value, dict) else ""
    try:
        plan, _ = read_plan(f'schema_version = "1.0"\n{text}'.encode(), HERE)
    except BadFile as error:
        assert all(problem.line >= 1 and problem.text for problem in error.problems)  # noqa: PT017
    else:
        assert isinstance(plan, Plan)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')


RULES = """
[[rules]]
name = "batch"
systemd_unit = ["batch.slice", "night.slice"]
user = "root"
active_thread_percentage = 20
pinned_memory_limit = "1=4G"
[[rules]]
namespace = "a/*"
client_priority = 1
"""


def test_rules_are_read_in_order() -> None:
    batch = (Condition("user", ("0",)), Condition("systemd_unit", ("batch.slice", "night.slice")))
    rules = (
        Rule(1, "batch", batch, Limits(percentages(20.0), {1: PinnedMemory(4 * GIB)})),
        Rule(2, "", (Condition("namespace", ("a/*",)),), Limits(client_priority=ClientPriority(1))),
    )
    assert _read(RULES).rules == rules
    assert _read(render_file({}, HERE, rules).partition("\n")[2]).rules == rules
    assert (_read("").rules, _read("rules = []").rules) == (None, ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'user = "nobody at all"',
            "rules.0.user must be a user's name on this machine, or its number, not \"nobody at",
        ),
        ("group = -1", "rules.0.group must be a group's name on this machine, or its number, not -1"),
        ("user = 4294967295", "rules.0.user must be a user's name on this machine, or its number, not 4294967295"),
        ("user = []", "rules.0.user must be a text or a number, or a list of one or more of them, not []"),
        ("user = true", "rules.0.user must be a text or a number, or a list of one or more of them, not true"),
        (
            'cgroup = "user.slice"',
            "rules.0.cgroup must be a path from the root of the cgroups, such as /user.slice, not",
        ),
        ('systemd_unit = "batch"', "rules.0.systemd_unit must be the name of a slice, a service or a scope, such as"),
        ('slurm_job = "a"', 'rules.0.slurm_job must be the number of a job, or *, not "a"'),
        (
            'kubernetes_pod = "web-1"',
            "rules.0.kubernetes_pod must be the UID of a pod, as kubectl get pod -o jsonpath",
        ),
        ('container = "abc"', "rules.0.container must be the first 12 to 64 digits of a container's ID, or *, not"),
        (
            'executable = "python"',
            "rules.0.executable must be the full path of a program, such as /usr/bin/python3*,",
        ),
        ('namespace = "A"', 'rules.0.namespace must be server/namespace, or a server, not "A"'),
        ('active_thread_percentage = "0"', 'rules.0.active_thread_percentage must be 1 to 100, not "0"'),
        ('users = "a"', "rules.0.users is not a key of a rule; did you mean user?"),
        ("name = 1", "rules.0.name must be a text of one line, 64 characters at most, not 1"),
        (f"name = '{'n' * 65}'", "rules.0.name must be a text of one line, 64 characters at most, not"),
        *(
            (
                f'cgroup = "{path}"',
                "rules.0.cgroup must be a path from the root of the cgroups, such as /user.slice, not",
            )
            for path in ("/a/../b", "/..", "/a/.", "//a", "/a//b", "/./a")
        ),
    ],
)
def test_an_error_in_a_rule_is_reported_with_its_line_and_key(line: str, message: str) -> None:
    (error,) = _errors(f'schema_version = "1.0"\n[[rules]]\n# comment\n{line}\n')
    assert error.startswith(f"F:4: {message}")


def test_rules_that_are_never_reached_are_warned_of() -> None:
    text = 'schema_version = "1.0"\n[[rules]]\nclient_priority = 1\n[[rules]]\nuser = 1\n'
    (warning,) = read_plan(text.encode(), HERE)[1]
    assert warning.render("F") == "F:2: rule 1 has no conditions: those after it are never reached"


def test_protocol_2_has_rules_only() -> None:
    assert _read("[[rules]]\nuser = 1", protocol=2).rules is not None
    errors = _errors('schema_version = "1.0"\n[servers.a]\n[[rules]]\nnamespace = "a"', protocol=2)
    assert errors == [
        "F:2: servers: protocol 2 has only rules; start the daemon with -p 3",
        "F:4: rules.0.namespace: protocol 2 has no namespaces; start the daemon with -p 3",
    ]


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from([*KINDS, "name", "client_priority"]),
        st.one_of(st.integers(), st.text(max_size=5), st.lists(st.sampled_from(["1", "*", "/a", 7]), max_size=2)),
        max_size=4,
    )
)
def test_any_rule_is_read_and_shown_as_it_was_or_refused(table: dict[str, Any]) -> None:
    text = "[[rules]]\n" + "".join(f"{key} = {_quote(value)}\n" for key, value in table.items())
    try:
        plan = _read(text)
    except BadFile as error:
        assert all(problem.line >= 1 and problem.text for problem in error.problems)  # noqa: PT017
    else:
        assert _read(render_file({}, HERE, plan.rules or ()).partition("\n")[2]).rules == plan.rules


def _quote(value: Any) -> str:
    return (
        f"[{', '.join(map(_quote, value))}]"
        if isinstance(value, list)
        else quote(value)
        if isinstance(value, str)
        else str(value)
    )


def test_a_server_named_after_a_user_is_that_users() -> None:
    assert _read("[servers.uid_7]", uid=0).servers["uid_7"].uid == 7
    for text in ("[servers.uid_x]", "[servers.uid_7]\nuid = 8", "[servers.uid_07]"):
        (error,) = _errors(f'schema_version = "1.0"\n{text}', uid=0)
        assert error.startswith("F:2: ")
        assert "uid_<n> is the name of the server of user n" in error
