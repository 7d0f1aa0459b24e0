"""The table of allowed results, and the judge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from tests.chaos.ended_contexts import CONTAINED_SECONDS
from tests.chaos.history import FOR_EVER, History, Incident, Life, Span, Step
from tests.chaos.recoveries import NOTICED, SLACK, end_of_interval, reach, recoveries
from tests.chaos.schedule import FAULTS, KINDS_OF, LONG_STOP_SECONDS, Backend, ClientPlan, Containment, Kind
from tests.chaos.verdicts import CULPRITS, FAULT_CODES, HANG_SECONDS, TABLE, VENDOR_TABLE, problems, remaining_seconds

ALICE, BOB = 1001, 1002


def a_life(number: int, uid: int = ALICE, devices: tuple[int, ...] = (0,), ended: float = 50.0) -> Life:
    """Return a client that came at 0, had a context on each device from 2 on, and ended in an orderly way."""
    plan = ClientPlan(0.0, number, 0, "mixed", devices, 3.0, 1)
    life = Life(plan, 100 + number, uid, 0.0, ended, status=0, init_began=0.5, attached=1.0)
    for context, device in enumerate(devices, 1):
        life.contexts[context] = Span(context, device, 1.5, 2.0, ended)
    return life


def a_step(code: int, at: float, device: int = 0, name: str = "copies", context: int = 1) -> Step:
    return Step(name, at - 0.1, at, device, context, code, "cuMemAlloc", "because")


def judge(
    life: Life,
    *steps: Step,
    others: tuple[Life, ...] = (),
    incidents: tuple[Incident, ...] = (),
    containment: Containment = Containment.DEVICE,
    backend: Backend = Backend.EMULATED,
) -> list[str]:
    life.steps.extend(steps)
    return list(problems(History([life, *others], list(incidents), containment, backend), life))


def fault(by: Life, device: int, at: float, code: int = 700) -> Incident:
    by.steps.append(a_step(code, at + 0.05, device, "fault wild_store"))
    return Incident(Kind.CLIENT_FAULT, 0, at, at, by.pid, by.plan.number, by.uid, device, 1, code)


def test_every_kind_is_in_the_table_and_every_code_is_a_result_of_cuda() -> None:
    assert set(TABLE) == set(Kind)
    codes = {code for roles in TABLE.values() for allowed in roles.values() for code in allowed}
    assert codes - {CULPRITS} | set(FAULT_CODES.values()) <= set(map(int, Result))
    assert set(FAULT_CODES) == set(FAULTS)


def test_what_must_not_be_noticed_allows_no_client_an_error() -> None:
    unnoticed = [kind for kind in Kind if not TABLE[kind]]
    assert unnoticed == [
        Kind.CLIENT_KILL, Kind.CLIENT_STOP, Kind.EXECUTOR_STOP, Kind.SERVER_STOP, Kind.DAEMON_STOP,
        Kind.DAEMON_KILL, Kind.DAEMON_REPLACE, Kind.KEEPER_KILL, Kind.KEEPER_STOP,
        Kind.SHUTDOWN_SERVER, Kind.START_SERVER, Kind.DRAIN, Kind.SERVER_MISBEHAVES, Kind.LISTS, Kind.QUERIES,
        Kind.LIMITS,
    ]  # fmt: skip


@given(kind=st.sampled_from([kind for kind in Kind if not TABLE[kind]]), code=st.sampled_from(list(Result)[1:]))
def test_an_incident_explains_no_error_of_another_kind(kind: Kind, code: Result) -> None:
    incident = Incident(kind, 1, 5.0, 6.0, uid=ALICE)
    assert len(judge(a_life(1), a_step(code, 5.5), incidents=(incident,))) == 1


def test_a_quiet_life_is_right() -> None:
    assert judge(a_life(1), a_step(0, 5.0)) == []


def test_a_wrong_result_is_wrong() -> None:
    assert "3 wrong in 'add'" in judge(a_life(1), Step("add", 1.0, 2.0, 0, 1, 0, wrong=3))[0]


def test_a_hang_a_crash_and_a_kill() -> None:
    hung, crashed, killed = a_life(1), a_life(2), a_life(3)
    hung.hung, crashed.status = True, 1
    killed.killed, killed.status = True, -9
    assert [len(judge(life)) for life in (hung, crashed, killed)] == [1, 1, 0]


def test_an_error_before_its_cause_has_none() -> None:
    incident = Incident(Kind.SERVER_KILL, 1, 5.0, 5.1, uid=ALICE)
    assert judge(a_life(1), a_step(806, 5.3), incidents=(incident,)) == []
    assert len(judge(a_life(1), a_step(806, 4.9), incidents=(incident,))) == 1
    assert len(judge(a_life(1), a_step(719, 5.3), incidents=(incident,))) == 1


def test_a_server_that_is_killed_is_its_own_users_matter() -> None:
    incident = Incident(Kind.SERVER_KILL, 1, 5.0, 5.1, uid=ALICE)
    assert len(judge(a_life(1, BOB), a_step(806, 5.3), incidents=(incident,))) == 1


def test_a_later_client_has_no_excuse() -> None:
    incident = Incident(Kind.SERVER_KILL, 1, 5.0, 5.1, uid=ALICE)
    late = a_life(1)
    late.init_began = late.attached = 5.1 + SLACK + 1
    assert len(judge(late, a_step(806, 20.0), incidents=(incident,))) == 1


@pytest.mark.parametrize(
    ("device", "code", "right"),
    [(0, 700, True), (0, 719, False), (1, 719, True), (1, 700, False), (2, 719, False), (2, 700, False)],
)
def test_a_fault_reaches_connected_devices_with_their_codes(device: int, code: int, right: bool) -> None:
    culprit, between, far = a_life(1), a_life(2, devices=(0, 1)), a_life(4, devices=(2,))
    incident = fault(culprit, 0, 10.0)
    life = {0: a_life(3), 1: a_life(3, devices=(1,)), 2: far}[device]
    step = a_step(code, 11.0, device)
    assert (judge(life, step, others=(culprit, between), incidents=(incident,)) == []) is right


def test_the_culprit_has_its_own_code() -> None:
    culprit = a_life(1)
    incident = fault(culprit, 0, 10.0)
    assert judge(culprit, a_step(700, 11.0), incidents=(incident,)) == []


def test_new_clients_are_refused_until_the_affected_ones_have_gone() -> None:
    culprit = a_life(1, ended=20.0)
    incident = fault(culprit, 0, 10.0)
    early, late, other = a_life(2), a_life(3), a_life(4, BOB)
    for life in (early, late, other):
        life.contexts.clear()
    over = 20.0 + SLACK + NOTICED
    init_step = {"device": -1, "name": "init", "context": -1}
    assert judge(early, a_step(807, 15.0, **init_step), others=(culprit,), incidents=(incident,)) == []
    assert len(judge(late, a_step(807, over + 1, **init_step), others=(culprit,), incidents=(incident,))) == 1
    assert len(judge(other, a_step(807, 15.0, **init_step), others=(culprit,), incidents=(incident,))) == 1


def test_a_context_on_an_affected_device_is_refused_to_others() -> None:
    culprit, far = a_life(1), a_life(2, devices=(2,))
    incident = fault(culprit, 0, 10.0)
    assert judge(far, a_step(807, 11.0, 0, "open", 2), others=(culprit,), incidents=(incident,)) == []
    life = a_life(3, devices=(2,))
    assert len(judge(life, a_step(807, 11.0, 2, "open", 2), others=(culprit,), incidents=(incident,))) == 1


def test_a_terminated_client_gets_that_code_and_never_a_success() -> None:
    life = a_life(1)
    details = {"pid": life.pid, "client": 1, "uid": ALICE, "note": "0"}
    incident = Incident(Kind.CLIENT_TERMINATE, 1, 5.0, 5.2, **details)
    assert judge(life, a_step(810, 5.3), incidents=(incident,)) == []
    assert len(judge(a_life(1), a_step(0, 6.0), incidents=(incident,))) == 1
    assert len(judge(a_life(2), a_step(810, 5.3), incidents=(incident,))) == 1
    incident.note = "201"
    assert judge(a_life(1), a_step(0, 6.0), incidents=(incident,)) == []


def test_a_client_that_was_granted_a_server_before_its_end_may_report_it_later() -> None:
    incident = Incident(Kind.SERVER_KILL, 1, 5.0, 5.1, uid=ALICE)
    slow = a_life(1)
    slow.init_began, slow.attached = 4.9, 9.0  # it was stopped in between
    assert judge(slow, a_step(806, 9.1, 0, "open", 1), incidents=(incident,)) == []


@pytest.mark.parametrize("code", [700, 719, 806, 810])
def test_a_context_that_has_ended_never_succeeds_again(code: int) -> None:
    cause = fault(a_life(2), 0, 4.9, code)
    terminated = Incident(Kind.CLIENT_TERMINATE, 1, 4.9, 5.0, client=1, uid=ALICE, note="201")
    killed = Incident(Kind.SERVER_KILL, 1, 4.9, 5.0, uid=ALICE)
    life = a_life(1, devices=(0, 1))
    culprit = a_life(2)
    culprit.ended = 4.95
    incidents = {806: (killed,), 810: (terminated,)}.get(code, (cause,))
    problems = judge(life, a_step(code, 5.0), a_step(0, 5.2), others=(culprit,), incidents=incidents)
    assert len(problems) == 1
    assert f"continues in a context that answered with {code}" in problems[0]


@pytest.mark.parametrize("name", ["add", "close"])
def test_a_server_that_has_gone_once_is_gone_for_all_of_a_process(name: str) -> None:
    killed = Incident(Kind.SERVER_KILL, 1, 4.9, 5.0, uid=ALICE)
    lost, later = a_step(806, 5.0, 0, name), a_step(0, 5.2, 1, context=2)
    problems = judge(a_life(1, devices=(0, 1)), lost, later, incidents=(killed,))
    assert ["learnt of its server's end" in problem for problem in problems] == [True]


def test_a_memory_that_was_full_is_not_the_end() -> None:
    problems = judge(a_life(1), a_step(2, 5.0), a_step(0, 5.2))
    assert len(problems) == 1
    assert "2 of cuMemAlloc" in problems[0], "the error itself, and nothing about the success"


@pytest.mark.parametrize(("containment", "ends"), [*zip(Containment, (True, False, True), strict=True)])
def test_a_process_that_a_fault_has_reached_has_no_other_context(containment: Containment, ends: bool) -> None:
    life = a_life(1, devices=(0, 1))
    incident = fault(life, 0, 5.0)
    soon, late = a_step(0, 5.5, 1, context=2), a_step(0, 5.3 + CONTAINED_SECONDS, 1, context=2)
    problems = judge(life, soon, late, incidents=(incident,), containment=containment)
    assert [("a process that a fatal fault" in problem) for problem in problems] == [True] * ends


@pytest.mark.parametrize(
    ("containment", "device", "ends"),
    [
        (Containment.DEVICE, 0, True),
        (Containment.DEVICE, 1, False),
        (Containment.CLIENT, 0, False),
        (Containment.SERVER, 1, True),
    ],
)
def test_a_neighbour_that_a_fault_must_reach_does_not_continue(
    containment: Containment, device: int, ends: bool
) -> None:
    culprit, neighbour = a_life(1), a_life(2, devices=(device,))
    incident = fault(culprit, 0, 5.0)
    late = a_step(0, 5.3 + CONTAINED_SECONDS, device)
    problems = judge(neighbour, late, others=(culprit,), incidents=(incident,), containment=containment)
    assert [("must have reached" in problem) for problem in problems] == [True] * ends
    # The fault does not reach a context that was made after it.
    new_client = a_life(3, devices=(device,))
    new_client.contexts[1].opened = 5.1
    assert judge(new_client, late, others=(culprit,), incidents=(incident,), containment=containment) == []
    # No notification arrives while a process is stopped.
    stop = Incident(Kind.SERVER_STOP, 2, 5.0, 15.0, uid=ALICE)
    third = a_life(4, devices=(device,))
    assert judge(third, late, others=(culprit,), incidents=(incident, stop), containment=containment) == []


def test_a_killed_executor_is_the_end_of_its_contexts() -> None:
    incident = Incident(Kind.EXECUTOR_KILL, 1, 5.0, 5.1, uid=ALICE, device=0)
    late = 5.3 + CONTAINED_SECONDS
    assert len(judge(a_life(1), a_step(0, late), incidents=(incident,))) == 1
    assert judge(a_life(2, devices=(1,)), a_step(0, late, 1), incidents=(incident,)) == []
    assert judge(a_life(3, BOB), a_step(0, late), incidents=(incident,)) == []


def test_a_machine_that_contains_faults_keeps_them_in_their_context() -> None:
    culprit, neighbour = a_life(1, devices=(0, 0)), a_life(2)
    incident = fault(culprit, 0, 5.0)
    details = {"incidents": (incident,), "containment": Containment.CLIENT}
    assert judge(culprit, a_step(700, 5.2), **details) == []
    assert len(judge(a_life(1, devices=(0, 0)), a_step(700, 5.2, context=2), others=(culprit,), **details)) == 1
    assert len(judge(neighbour, a_step(700, 5.2), others=(culprit,), **details)) == 1
    init_step = a_step(807, 5.2, -1, "init", -1)
    assert len(judge(a_life(3), init_step, others=(culprit,), **details)) == 1


def test_a_fault_before_volta_ends_the_server() -> None:
    culprit = a_life(1, ended=6.0)
    details = {"others": (culprit,), "incidents": (fault(culprit, 0, 5.0),), "containment": Containment.SERVER}
    for step in (a_step(700, 5.2), a_step(719, 5.2, 1), a_step(806, 5.2, 2), a_step(806, 5.2, 2, "open", 2)):
        assert judge(a_life(2, devices=(0, 1, 2)), step, **details) == []
    assert len(judge(a_life(3), a_step(810, 5.2), **details)) == 1
    assert len(judge(a_life(4, BOB), a_step(806, 5.2), **details)) == 1
    for code, count in ((807, 0), (805, 0), (806, 1)):
        assert len(judge(a_life(5), a_step(code, 5.2, -1, "init", -1), **details)) == count


def test_a_servers_last_message_before_volta_has_one_error_for_all_contexts_of_a_process() -> None:
    culprit = a_life(1, ended=6.0)
    details = {"others": (culprit,), "incidents": (fault(culprit, 0, 5.0),)}
    for devices, containment, right in (
        ((0, 1), Containment.SERVER, True),
        ((1, 2), Containment.SERVER, False),
        ((0, 1), Containment.DEVICE, False),
    ):
        life = a_life(2, devices=devices)
        problems = judge(life, a_step(700, 5.2, 1, context=2), containment=containment, **details)
        assert (problems == []) is right


def test_only_a_server_that_is_stopped_for_too_long_may_be_killed_by_a_new_daemon() -> None:
    step = a_step(806, 30.0)
    for seconds, daemons, right in (
        (LONG_STOP_SECONDS[1], 1, True),
        (5.0, 1, False),
        (LONG_STOP_SECONDS[1], 0, False),
    ):
        stop = Incident(Kind.SERVER_STOP, 1, 15.0, 15.0 + seconds, uid=ALICE)
        new = (Incident(Kind.DAEMON_REPLACE, 2, 16.0, 17.0),) * daemons
        assert (judge(a_life(1), step, incidents=(stop, *new)) == []) is right


def test_contexts_on_an_executor_that_is_stopped_in_a_fault_may_lose_it() -> None:
    for seconds, right in ((LONG_STOP_SECONDS[1], True), (2.0, False)):
        culprit, neighbour = a_life(1), a_life(2)
        stop = Incident(Kind.EXECUTOR_STOP, 1, 4.0, 4.0 + seconds, uid=ALICE, device=0)
        incidents = (stop, fault(culprit, 0, 5.0))
        assert (judge(neighbour, a_step(719, 11.0), others=(culprit,), incidents=incidents) == []) is right


@pytest.mark.parametrize(("kind", "right"), [(Kind.DAEMON_KILL, False), (Kind.BOTH_KILL, True)])
@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_a_client_is_excused_only_if_the_keeper_was_killed_too(kind: Kind, right: bool, seconds: float) -> None:
    incident = Incident(kind, 1, 5.0, 5.0 + seconds)
    for step in (a_step(805, 5.3, -1, "init", -1), a_step(806, 5.3)):
        assert (judge(a_life(1), step, incidents=(incident,)) == []) is right


# --- with the driver's server


def by_driver(life: Life, step: Step, *incidents: Incident, others: tuple[Life, ...] = ()) -> list[str]:
    return judge(life, step, others=others, incidents=incidents, backend=Backend.VENDOR)


def test_what_must_not_be_noticed_with_the_drivers_server() -> None:
    assert KINDS_OF[Backend.VENDOR] - set(VENDOR_TABLE) == {
        Kind.CLIENT_KILL, Kind.SERVER_STOP, Kind.DAEMON_STOP, Kind.DAEMON_KILL, Kind.DAEMON_REPLACE,
        Kind.KEEPER_KILL, Kind.KEEPER_STOP, Kind.SHUTDOWN_SERVER, Kind.START_SERVER, Kind.DRAIN, Kind.LISTS,
        Kind.QUERIES,
        Kind.LIMITS,
    }  # fmt: skip


@given(
    kind=st.sampled_from(sorted(KINDS_OF[Backend.VENDOR] - set(VENDOR_TABLE))),
    code=st.sampled_from([100, 700, 805, 806, 807, 810]),
    name=st.sampled_from(["init", "unresponsive", "open", "chain"]),
)
def test_an_incident_explains_no_error_of_another_kind_with_the_drivers_server(
    kind: Kind, code: int, name: str
) -> None:
    incident = Incident(kind, 1, 5.0, 6.0, uid=ALICE)
    assert len(by_driver(a_life(1), a_step(code, 5.5, name=name), incident)) == 1


@pytest.mark.parametrize(
    ("kind", "name", "code", "right"),
    [
        (Kind.SERVER_KILL, "chain", 806, True),
        (Kind.SERVER_KILL, "init", 806, True),
        (Kind.SERVER_KILL, "chain", 810, False),
        (Kind.SERVER_KILL, "init", 100, False),
        (Kind.QUIT, "init", 100, True),
        (Kind.BOTH_KILL, "open", 100, True),
    ],
)
def test_an_end_of_the_drivers_server(kind: Kind, name: str, code: int, right: bool) -> None:
    incident = Incident(kind, 1, 5.0, 6.0)
    assert (by_driver(a_life(1), a_step(code, 5.5, name=name), incident) == []) is right


@pytest.mark.parametrize(
    ("name", "seconds", "number", "right"),
    [("init", 2.0, 1, True), ("init", 0.5, 1, False), ("chain", 2.0, 1, False), ("init", 2.0, 2, False)],
)
def test_a_client_that_is_stopped_while_it_connects_may_be_dropped(
    name: str, seconds: float, number: int, right: bool
) -> None:
    stop = Incident(Kind.CLIENT_STOP, 1, 5.0, 5.0 + seconds, client=number, uid=ALICE)
    step = Step(name, 4.9, 5.1 + seconds, 0, 1, 806)
    assert (by_driver(a_life(1), step, stop) == []) is right


def test_a_client_of_the_drivers_may_have_contexts_of_two_servers() -> None:
    killed = Incident(Kind.SERVER_KILL, 1, 4.9, 5.0, uid=ALICE)
    life = a_life(1, devices=(0, 1))
    life.steps.append(a_step(806, 5.0))
    assert by_driver(life, a_step(0, 5.2, 1, context=2), killed) == []
    assert len(by_driver(life, a_step(0, 5.3), killed)) == 1


def test_incidents_that_ended_long_ago_are_left_out() -> None:
    long_ago, lately, later = (Incident(Kind.SERVER_KILL, 1, at, at + 1, uid=ALICE) for at in (100.0, 280.0, 501.0))
    before, with_it, after = a_life(1, ended=150.0), a_life(2, ended=350.0), a_life(3)
    after.started = 501.0
    life = a_life(4, ended=500.0)
    life.started = 300.0
    history = History([before, with_it, life, after], [long_ago, lately, later]).around(life)
    assert (history.lives, history.incidents) == ([with_it, life], [lately])


LIVES = st.lists(st.frozensets(st.integers(0, 4), min_size=1), max_size=6)


@given(spread=LIVES, device=st.integers(0, 4))
def test_reach_is_the_connected_component(spread: list[frozenset[int]], device: int) -> None:
    lives = [a_life(number, devices=tuple(devices)) for number, devices in enumerate(spread, 1)]
    devices, reached = reach(lives, device, 5.0, 6.0)
    inside = [set(life.plan.devices) <= devices for life in lives]
    assert device in devices
    assert inside == [life in reached for life in lives]
    assert all(inside[number] or not devices & set(life.plan.devices) for number, life in enumerate(lives))


def test_faults_that_overlap_are_one_recovery() -> None:
    own, other, later = a_life(1, ended=20.0), a_life(2, devices=(2,), ended=30.0), a_life(3, ended=90.0)
    later.contexts[1] = Span(1, 0, 80.0, 81.0, 90.0)
    incidents = [fault(own, 0, 10.0), fault(other, 2, 15.0), fault(later, 0, 85.0)]
    first, second = recoveries(History([own, other, later], incidents), ALICE)
    assert (first.devices, first.clients, len(first.faults)) == ({0, 2}, {1, 2}, 2)
    assert (second.devices, second.clients) == ({0}, {3})
    other.ended = FOR_EVER
    assert len(recoveries(History([own, other, later], incidents), ALICE)) == 1


def test_what_is_stopped_settles_later() -> None:
    stops = [Incident(Kind.SERVER_STOP, 1, 9.0, 12.0), Incident(Kind.EXECUTOR_STOP, 2, 13.0, 30.0)]
    assert end_of_interval([], 10.0, 2.0) == 12.0
    assert end_of_interval(stops[:1], 10.0, 2.0) == 14.0
    assert end_of_interval(stops[::-1], 10.0, 2.0) == 32.0
    assert end_of_interval(stops, 31.0, 2.0) == 33.0
    assert end_of_interval([Incident(Kind.QUERIES, 1, 9.0, 12.0)], 10.0, 2.0) == 12.0


def test_a_wait_is_longer_by_the_time_for_which_it_was_stopped() -> None:
    life = a_life(1, ended=FOR_EVER)
    life.heard = 10.0
    history = History([life], [Incident(Kind.SERVER_STOP, 1, 9.0, 12.0), Incident(Kind.QUERIES, 2, 10.0, 30.0)])
    assert remaining_seconds(history, life, 20.0) == HANG_SECONDS + 2.0 - 10.0
