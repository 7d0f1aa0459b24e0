"""The daemon's state machine under any order of events, drawn by hypothesis (tests/support/daemon_machine.py)."""

from __future__ import annotations

from typing import Any

from daemon_machine import (
    CrowdedMachine,
    DaemonMachine,
    FewestTurnsMachine,
    MultiuserMachine,
    NoOvertakingMachine,
    OwnDaemonMachine,
    TogetherMachine,
)
from hypothesis import settings
from static_machine import CrowdedStaticMachine, StaticMachine

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

DaemonMachine.TestCase.settings = settings(max_examples=150 * EXAMPLES // 100, stateful_step_count=40)
OwnDaemonMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=30)
FewestTurnsMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40)
NoOvertakingMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40)
MultiuserMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40)
TogetherMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40)
CrowdedMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
StaticMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
CrowdedStaticMachine.TestCase.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40)
TestRootDaemon = DaemonMachine.TestCase
TestOwnDaemon = OwnDaemonMachine.TestCase
TestFewestTurnsDaemon = FewestTurnsMachine.TestCase
TestNoOvertakingDaemon = NoOvertakingMachine.TestCase
TestMultiuserDaemon = MultiuserMachine.TestCase
TestDaemonOfUsersTogether = TogetherMachine.TestCase
TestCrowdedDaemonOfUsersTogether = CrowdedMachine.TestCase
TestStaticDaemon = StaticMachine.TestCase
TestCrowdedStaticDaemon = CrowdedStaticMachine.TestCase


class Drawn:
    """A data object that returns given values."""

    def __init__(self, *values: Any) -> None:
        self._values = iter(values)

    def draw(self, _strategy: object, label: str = "") -> Any:
        """Return the next value."""
        return next(self._values)


def test_server_ids_start_at_1_if_no_server_is_taken_over() -> None:
    machine = DaemonMachine()
    machine.start_busy(clients=1, ended=False)
    machine.client_gone(Drawn(1))  # type: ignore[arg-type]
    machine.server_exits(status=0)
    machine.connect(uid=500, foreign=False)
    machine.spawned()
    machine.server_dies_at_start(stated=False)
    machine.daemon_dies(Drawn([2]))  # type: ignore[arg-type]
    machine.spawned()
    machine.status(fault=False)
    machine.crashes()
    machine.a_pause_ends()
    assert machine.failures == {500: 1}
