"""A plan against the daemon's state: what differs is changed, what is the same is not, what cannot be is reported."""

from __future__ import annotations

from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pympsd.configuration.changes import (
    Change,
    CreateNamespace,
    CreatePartition,
    CreateServer,
    DeleteNamespace,
    DeletePartition,
    DeleteServer,
    Impossible,
    SetNamespace,
    SetServer,
    State,
    changes,
)
from pympsd.configuration.plan import FileContext, PartitionPlan, Plan, ServerPlan
from pympsd.configuration.reader import read_plan
from pympsd.configuration.show import render_file
from pympsd.devices.machine import describe
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ALL_DEVICES, CgroupLimit, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Rule

HERE = FileContext(describe("2xH200"), 0)
HALF = Limits(percentages(50.0))
FOUR = {0: PinnedMemory(4 << 30), 1: PinnedMemory(4 << 30)}


def _plan(*servers: ServerPlan) -> Plan:
    return Plan({server.name: server for server in servers})


def _texts(plan: Plan, state: State, **how: bool) -> list[str]:
    return [str(change) for change in changes(plan, state, **how)]


def _carry_out(servers: dict[str, NamedServer], changes: list[Change]) -> dict[str, NamedServer]:
    """Carry changes out on a state of no processes."""
    servers = dict(servers)
    for change in changes:
        match change:
            case CreateServer(plan, uid):
                server = servers[plan.name] = NamedServer(
                    plan.name, uid, allowed_devices=plan.devices, source=Source.CONFIG, maximum=plan.maximum
                )
                server.contains_partitions = bool(plan.contains_partitions)
                for name, limits in plan.namespaces.items():
                    server.namespaces[name] = Namespace(name, limits)
                for partition in plan.partitions:
                    _add(server, partition)
            case CreatePartition(server_name, partition, _):
                _add(servers[server_name], partition)
            case DeletePartition(server_name, there, _):
                servers[server_name].partitions.remove(there)
            case CreateNamespace(server_name, name, limits):
                servers[server_name].namespaces[name] = Namespace(name, limits)
            case SetNamespace(server_name, name, limits, _):
                present = servers[server_name].namespaces[name]
                present.limits = present.limits.overlay(limits)
            case SetServer(server_name, maximum, contains, _):
                server = servers[server_name]
                server.maximum = server.maximum.overlay(maximum)
                server.contains_partitions = server.contains_partitions if contains is None else contains
            case DeleteServer(name):
                del servers[name]
            case DeleteNamespace(server_name, name):
                del servers[server_name].namespaces[name]
    return servers


def _add(server: NamedServer, plan: PartitionPlan) -> None:
    server.partitions.append(SmPartition(plan.name, plan.device, tuple(range(plan.chunks))))


def test_a_missing_server_is_made() -> None:
    plan = _plan(ServerPlan("b", 7), ServerPlan("a", None, (1,), {"hi": HALF}))
    first, second = changes(plan, State({}, evolve(HERE, uid=5)))
    assert first == CreateServer(plan.servers["a"], 5)
    assert second == CreateServer(plan.servers["b"], 7)
    assert str(first) == "created server 'a'"


def test_settings_that_differ_are_changed_and_reported() -> None:
    state = State({"a": NamedServer("a", 0, {"default": Namespace("default"), "hi": Namespace("hi", HALF)})}, HERE)
    expected = Limits(percentages(30.0), FOUR, ClientPriority(1))
    (change,) = changes(_plan(ServerPlan("a", None, None, {"hi": expected})), state)
    assert str(change) == (
        "set namespace 'a/hi': pinned-memory-limit unlimited -> 4G, active-thread-percentage 50.00 -> 30.00, "
        "client-priority 0 -> 1"
    )
    assert _texts(_plan(ServerPlan("a", None, None, {"hi": HALF})), state) == []
    uneven = Limits(pinned_memory={1: FOUR[0]})
    assert _texts(_plan(ServerPlan("a", None, None, {"lo": HALF, "hi": uneven})), state) == [
        "set namespace 'a/hi': pinned-memory-limit unlimited -> 0=unlimited,1=4G",
        "created namespace 'a/lo'",
    ]


def test_what_is_set_of_a_whole_server() -> None:
    state = State({"a": NamedServer("a", 0, maximum=Limits(percentages(50.0)))}, HERE)
    expected = Limits(percentages(30.0), FOUR)
    (change,) = changes(_plan(ServerPlan("a", maximum=expected, contains_partitions=True)), state)
    assert change == SetServer("a", expected, True, change.differences)
    assert str(change) == (
        "set server 'a': max-pinned-memory-limit unlimited -> 4G, max-active-thread-percentage 50.00 -> 30.00, "
        "contain server -> partition"
    )


def test_objects_missing_from_the_file_stay_without_prune() -> None:
    servers = {
        "a": NamedServer("a", 0, {"default": Namespace("default"), "hi": Namespace("hi")}),
        "b": NamedServer("b", 0),
        "uid_7": NamedServer("uid_7", 7, source=Source.AUTO),
    }
    state = State(servers, HERE)
    assert _texts(_plan(ServerPlan("a")), state) == []
    assert _texts(_plan(ServerPlan("a")), state, prune=True) == ["deleted server 'b'", "deleted namespace 'a/hi'"]


def test_objects_with_clients_are_pruned_only_with_force() -> None:
    servers = {
        "a": NamedServer("a", 0, {"default": Namespace("default"), "hi": Namespace("hi")}),
        "b": NamedServer("b", 0),
    }
    state = State(servers, HERE, lambda server, namespace: 2 if namespace is None else 1)
    assert _texts(_plan(ServerPlan("a")), state, prune=True) == [
        "server 'b' stays: it has 2 active clients; --force terminates them",
        "namespace 'a/hi' stays: it has 1 active client; --force terminates it",
    ]
    forced = changes(_plan(ServerPlan("a")), state, prune=True, force=True)
    assert forced == [DeleteServer("b"), DeleteNamespace("a", "hi")]


def test_what_a_server_keeps_is_reported() -> None:
    state = State({"a": NamedServer("a", 0, allowed_devices=(1,))}, HERE)
    for uid, text in (
        (7, "server 'a' stays that of user 0: 'server set a --uid=7' changes it"),
        (0, "server 'a' keeps its devices: delete the server first to give it others"),
    ):
        kept = changes(_plan(ServerPlan("a", uid, (0, 1))), state)
        assert [type(change) for change in kept] == [Impossible]
        assert [str(entry) for entry in kept] == [text]
    assert changes(_plan(ServerPlan("a", 0, (1,))), state) == []
    every = State({"a": NamedServer("a", 0)}, HERE)
    assert changes(_plan(ServerPlan("a", 0, (0, 1))), every) == []


def test_which_rules_and_limits_of_cgroups_change_is_reported() -> None:
    def describe_changes(before: int, *others: int, after: int) -> str:
        rules = [Rule(number, f"r{number}") for number in range(1, 9)]
        values = {number: CgroupLimit(PinnedMemory(number)) for number in range(1, 9)}
        changed = [evolve(rule, name="new") if rule.number in others else rule for rule in rules]
        state = State({}, HERE, rules=tuple(rules[:before]))
        state = evolve(state, cgroups={f"/c{number}": {0: values[number]} for number in range(1, before + 1)})
        limits = {
            f"/c{number}": {0: CgroupLimit() if number in others else values[number]}
            for number in range(1, after + 1)
        }
        return "\n".join(_texts(Plan(rules=tuple(changed[:after]), cgroups=limits), state))

    assert describe_changes(2, 2, after=2) == (
        "set rules: 2 rules -> 2 rules (changed: 2 ('new'))\nset limits of 2 cgroups -> 2 cgroups (changed: /c2)"
    )
    assert describe_changes(3, after=2) == (
        "set rules: 3 rules -> 2 rules (changed: 3 ('r3'))\nset limits of 3 cgroups -> 2 cgroups (changed: /c3)"
    )
    assert describe_changes(1, after=6) == (
        "set rules: 1 rule -> 6 rules (changed: 2 ('r2'), 3 ('r3'), 4 ('r4') and 2 more)\n"
        "set limits of 1 cgroup -> 6 cgroups (changed: /c2, /c3, /c4 and 2 more)"
    )
    assert describe_changes(2, after=0) == "set rules: 2 rules -> no rules\nset limits of 2 cgroups -> no cgroups"


NAMES = st.sampled_from(["a", "b_2", "uid_7"])
MEMORY = st.sampled_from([None, {}, FOUR, {1: PinnedMemory(1 << 30)}, {0: PinnedMemory(3 << 20)}])
PERCENTAGES = st.none() | st.dictionaries(
    st.sampled_from([ALL_DEVICES, 0, 1]), st.integers(1, 100).map(lambda n: ThreadPercentage(float(n))), min_size=1
)
LIMITS = st.builds(
    Limits,
    PERCENTAGES,
    MEMORY,
    st.none() | st.integers(0, 1).map(ClientPriority),
    MEMORY,
    st.sampled_from([None, "", "p"]),
)
PARTITION_LISTS = st.lists(
    st.builds(PartitionPlan, st.sampled_from("pq"), st.integers(0, 1), st.integers(1, 2), st.just(False)),
    max_size=2,
    unique_by=lambda entry: (entry.name, entry.device),
).map(tuple)
SERVERS = st.builds(
    lambda name, uid, devices, namespaces, partitions, maximum, contains: ServerPlan(
        name,
        7 if name == "uid_7" else uid,
        devices,
        namespaces,
        partitions=tuple(partition for partition in partitions if devices is None or partition.device in devices),
        maximum=maximum,
        contains_partitions=contains,
    ),
    NAMES,
    st.sampled_from([None, 0, 7]),
    st.sampled_from([None, (0,), (1, 0)]),
    st.dictionaries(st.sampled_from(["default", "hi", "lo"]), LIMITS, max_size=3),
    PARTITION_LISTS,
    st.builds(Limits, PERCENTAGES, MEMORY),
    st.sampled_from([None, True, False]),
)
PLANS = st.lists(SERVERS, max_size=3, unique_by=lambda server: server.name).map(lambda servers: _plan(*servers))


@settings(max_examples=40)
@given(PLANS, PLANS)
def test_after_its_changes_a_plan_asks_for_none_but_what_is_impossible(one: Plan, other: Plan) -> None:
    servers = _carry_out({}, changes(one, State({}, HERE)))
    assert changes(one, State(servers, HERE)) == []
    servers = _carry_out(servers, changes(other, State(servers, HERE), prune=True))
    assert servers.keys() == other.servers.keys()
    remaining = changes(other, State(servers, HERE), prune=True)
    assert all(isinstance(change, Impossible) for change in remaining)


@settings(max_examples=40)
@given(PLANS)
@example(_plan(ServerPlan("a", namespaces={"default": Limits(sm_partition="")})))
def test_applying_the_shown_configuration_restores_the_same_state(plan: Plan) -> None:
    servers = _carry_out({}, changes(plan, State({}, HERE)))
    text = render_file(servers, HERE)
    again = _carry_out({}, changes(read_plan(text.encode(), HERE)[0], State({}, HERE)))
    assert render_file(again, HERE) == text
    assert changes(plan, State(again, HERE)) == []


def test_the_text_that_is_shown() -> None:
    servers = {
        "a": NamedServer("a", 7, {"default": Namespace("default"), "hi": Namespace("hi", HALF)}, (1,)),
        "uid_7": NamedServer("uid_7", 7, source=Source.AUTO),
    }
    assert (
        render_file(servers, HERE)
        == f'''schema_version = "1.0"

[servers.a]
uid = 7
allowed_devices = "{HERE.devices[1].uuid}"
[servers.a.namespaces.hi]
active_thread_percentage = "50.00"'''
    )
