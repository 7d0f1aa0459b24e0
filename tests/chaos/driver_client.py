"""A client of a soak with the fake libcuda of tests/support/fake_mps, run by path with its plan (client_loop).

It can also be a client that connects and then sends its server nothing, for the time in its plan.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fake_mps.client import SUCCESS, Failure, Program, ask, be_handed_over, look
from fake_mps.clients import STEP_FACTOR, STEP_MODULUS, STEP_TERM

from tests.chaos.client_loop import Client, report_end
from tests.chaos.client_protocol import Failed, read_command, step

STEPS: Final = {
    "chain": ("chain",),
    "contexts": ("contexts", "chain", "contexts", "memory"),
    "memory": ("memory", "chain"),
    "probe": ("idle",),
}
NO_DAEMON: Final = "NO_DAEMON"
CODES: Final = {
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    NO_DAEMON: 100,
    "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_MPS_CONNECTION_FAILED": 805,
    "CUDA_ERROR_MPS_RPC_FAILURE": 806,
    "CUDA_ERROR_MPS_SERVER_NOT_READY": 807,
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED": 808,
    "CUDA_ERROR_MPS_CLIENT_TERMINATED": 810,
}
"""Results by name. (Without a daemon, libcuda continues without MPS; the soak's machine then has no device.)"""
ALLOCATION: Final = 1 << 20
CHAIN_STEPS: Final = 20
MULTIPROCESSORS: Final = range(2, 134, 2)
_Any = TypeVar("_Any")


def check(call: str, function: Callable[[], _Any]) -> _Any:
    """Return a call's value; raise Failed if its result is an error."""
    try:
        result = function()
    except Failure as failure:
        raise Failed(call, CODES[str(failure)], str(failure)) from None
    if isinstance(result, str) and result != SUCCESS:
        raise Failed(call, CODES[result], result)
    return result


class Bench:
    """A context of the fake driver, and steps in it."""

    def __init__(self, program: Program, device: int) -> None:
        """Make the context; raise Failed."""
        check("cuCtxCreate", lambda: program.do_ctx(str(device)))
        self.program = program
        self.device = device
        self.number = len(program.contexts) - 1
        self.value = self.steps = 0

    def enter(self) -> None:
        """Do nothing: each step names its context."""

    def close(self) -> int:
        """Destroy it."""
        check("cuCtxDestroy", lambda: self.program.do_destroy(str(self.number)))
        return 0

    def chain(self) -> int:
        """Do computations, each with the result of the one before."""
        wrong = 0
        for _ in range(CHAIN_STEPS):
            self.value = (self.value * STEP_FACTOR + STEP_TERM + self.steps) % STEP_MODULUS
            wrong += self._ask("step", number=self.steps)["value"] != self.value
            self.steps += 1
        return wrong

    def memory(self) -> int:
        """Check a small allocation, and the number of multiprocessors."""
        self._ask("alloc", bytes=ALLOCATION)
        return int(self._ask("sms")["value"] not in MULTIPROCESSORS)

    def fault(self, name: str) -> int:
        """Cause a fatal error; a success is wrong."""
        self._ask("fault")
        return 1

    def synchronize(self) -> int:
        """Synchronize once more, after an error."""
        self._ask("sync")
        return 0

    def idle(self) -> int:
        """Do nothing."""
        return 0

    def _ask(self, request: str, **more: int) -> dict[str, Any]:
        context = self.program.contexts[self.number]
        assert context is not None
        return check(request, lambda: ask(context, ask=request, **more))


def be_unresponsive(seconds: float) -> None:
    """Get a connection to a server, and send nothing there."""
    held = []

    def connect() -> int:
        try:
            look()
        except OSError:
            raise Failed("connect", CODES[NO_DAEMON], NO_DAEMON) from None
        try:
            held.append(check("connect", be_handed_over))
        except OSError as error:
            raise Failed("connect", CODES[NO_DAEMON], str(error)) from None
        return 0

    if not step("unresponsive", -1, -1, connect):
        read_command(seconds)


def main(text: str) -> None:
    """Run the plan."""
    plan = json.loads(text)
    if plan["work"] == "unresponsive":
        be_unresponsive(plan["seconds"])
    else:
        program = Program()
        client = Client(
            plan,
            STEPS[plan["work"]],
            lambda: int(check("cuInit", program.do_init) != SUCCESS),
            lambda device, _: Bench(program, device),
            "chain",
        )
        client.run()
        program.end()
    report_end()


if __name__ == "__main__":
    main(sys.argv[1])
