"""Named servers and namespaces under any order of events, drawn by hypothesis (tests/support/named_machine.py)."""

from __future__ import annotations

from hypothesis import settings
from named_machine import MultiuserNamedMachine, NamedMachine

NamedMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
MultiuserNamedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestNamedServers = NamedMachine.TestCase
TestNamedServersOfRoot = MultiuserNamedMachine.TestCase
