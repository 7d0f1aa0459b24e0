"""Policies that are plug-ins: entry points, named by a setting as NAME or NAME:ARGUMENT."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from pympsd.vocabulary.settings import SCHEDULING_POLICIES, TURN_POLICIES
from pympsd.vocabulary.variables import BadSetting

METHODS: Final = {
    SCHEDULING_POLICIES: ("add", "remove", "drop", "next", "charge"),
    TURN_POLICIES: ("__call__",),
}
"""What a policy of each group is asked."""


def named_policy(group: str, variable: str, text: str) -> Any:
    """Return what the entry point that a setting names makes of its argument ("" without one); raise BadSetting."""
    name, _, argument = text.partition(":")
    known = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        names = ", ".join(sorted(known))
        raise BadSetting(f"{variable} is one of {names}, or an entry point of the group {group}; not {name!r}")
    try:
        policy = known[name].load()(argument)
    except ValueError as error:
        raise BadSetting(f"{variable}={text}: {error}") from None
    except Exception as error:  # whatever a plug-in may raise, or its modules when they are imported
        where = f"{known[name].value} cannot be used: {type(error).__name__}: {error}"
        raise BadSetting(f"{variable}={text}: {where}") from error
    missing = [method for method in METHODS[group] if not callable(getattr(policy, method, None))]
    if missing:
        has = f"it has to return a policy, and {type(policy).__name__} has no {', '.join(missing)}"
        raise BadSetting(f"{variable}={text}: {known[name].value} cannot be used: {has}")
    return policy
