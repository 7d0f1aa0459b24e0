"""Commands of Volta MPS on older or unknown devices: they answer as always, with a note on what effect they have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from attrs import evolve

from pympsd.commands.registry import Caller, Decision, Handler
from pympsd.state_machine.state.daemon import Daemon


def volta_only(what: str) -> Callable[[Handler], Handler]:
    """Make a handler add a note on stderr if no device is known to be Volta or newer; refusals keep their own."""

    def make(handler: Handler) -> Handler:
        @wraps(handler)
        def answer(daemon: Daemon, caller: Caller, **arguments: Any) -> Decision:
            decision = handler(daemon, caller, **arguments)
            if decision.answer is None or decision.answer.refused or _has_volta(daemon):
                return decision
            if daemon.devices:
                note = f"{what} no effect: the devices of this daemon are older than Volta (compute capability 7.0)"
            else:
                note = f"{what} an effect from Volta on; the devices are not known yet: the first server reports them"
            return evolve(decision, answer=evolve(decision.answer, diagnostic=note))

        return answer

    return make


def _has_volta(daemon: Daemon) -> bool:
    return any(device.is_volta_or_newer for device in daemon.devices)
