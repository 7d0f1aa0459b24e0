"""A round of a soak: clients and chaos as scheduled, every client judged at its end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final

import trio
from attrs import define, field
from processes import children_of

from tests.chaos.actions import ACTIONS, terminate
from tests.chaos.history import FOR_EVER, Incident, Life
from tests.chaos.hostile import attack
from tests.chaos.identity import ProcessKey, strike, there
from tests.chaos.leaks import find_crowded
from tests.chaos.recoveries import SLACK
from tests.chaos.schedule import DEVICES, KINDS_OF, Action, Backend, ClientPlan, Kind, actions, clients
from tests.chaos.testbed import NEEDS_ITS_DAEMON, ON_THE_DAEMON, Testbed, now
from tests.chaos.verdicts import FAULT_CODES, HANG_SECONDS, problems, remaining_seconds

AT_ONCE: Final = 6
"""More clients than this do not run at the same time, at pace 1."""
LISTEN_SECONDS: Final = 0.1
PROBE_SECONDS: Final = 2.0
CALM_SECONDS: Final = 15.0
NO_CLIENTS: Final = ("", "Server not found\n")


@define
class Soak:
    """One run."""

    of_protocol: ClassVar[str] = ""
    """A suffix of the names of counted errors."""
    testbed: Testbed
    seed: int
    seconds: float
    kinds: frozenset[Kind]
    pace: float = 1.0
    _unjudged: list[Life] = field(factory=list, init=False)
    judged: int = field(default=0, init=False)

    async def run(self) -> None:
        """Run the soak to the daemon's end."""
        testbed = self.testbed
        await testbed.start_daemon()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen_and_judge)
            async with trio.open_nursery() as hostile:
                hostile.start_soon(attack, testbed)
                async with trio.open_nursery() as cast:
                    cast.start_soon(self._start_clients, cast)
                    cast.start_soon(self._do_chaos, cast)
                hostile.cancel_scope.cancel()
            await self._wait_until_calm()
            await self._end()
            nursery.cancel_scope.cancel()
        testbed.listen()
        testbed.reap()
        self._judge_until(FOR_EVER)

    async def _listen_and_judge(self) -> None:
        while True:
            self.testbed.listen()
            self.testbed.reap()
            # What explains a client's error may be reported a moment later, by another client. So a client is judged
            # after SLACK, and after everything that was reported in that time has been read.
            due = now() - SLACK
            await trio.sleep(LISTEN_SECONDS)
            self._judge_until(due)

    # --- clients

    async def _start_clients(self, cast: trio.Nursery) -> None:
        for plan in clients(self.seed, self.seconds, self.pace, self.testbed.setup.backend):
            await self.testbed.until(plan.at)
            if len(self.testbed.living()) < AT_ONCE * self.pace:
                cast.start_soon(self._live, plan)
            else:
                self.testbed.counts["left out: clients, too many at the same time"] += 1

    async def _live(self, plan: ClientPlan) -> None:
        life, process = await self.testbed.start_client(plan)
        self.testbed.stdin[plan.number] = process.stdin
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_complaint, process, life)
                is_endless = trio.Event()
                nursery.start_soon(self._end_endless, life, is_endless)
                nursery.start_soon(self._watch, life)
                await self._hear(process, life, is_endless)
                life.status = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            life.ended = now()
            del self.testbed.stdin[plan.number]
            await _close(process)
            self.testbed.release(process.pid)
        self.testbed.note("ended", number=plan.number, status=life.status, doing=life.doing, steps=len(life.steps))
        self._unjudged.append(life)

    async def _hear(self, process: trio.Process, life: Life, is_endless: trio.Event) -> None:
        rest = b""
        async for piece in process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                document = json.loads(line)
                self._note_fault(life, document)
                life.hear(document)
                if life.doing == "endless":
                    is_endless.set()

    def _note_fault(self, life: Life, report: dict[str, Any]) -> None:
        activity, _, name = report["doing"].partition(" ")
        if activity == "fault":
            details = {"pid": life.pid, "client": life.plan.number, "uid": life.uid, "device": report["device"]}
            details["context"] = report["context"]
            self.testbed.history.incidents.append(
                Incident(Kind.CLIENT_FAULT, 0, report["t"], report["t"], code=FAULT_CODES[name], note=name, **details)
            )
            self.testbed.counts[f"fault {name}"] += 1
            self.testbed.note("client_fault", name=name, **details)

    async def _end_endless(self, life: Life, is_endless: trio.Event) -> None:
        """Terminate a client whose kernel never ends, as an operator does."""
        await is_endless.wait()
        await trio.sleep(life.plan.seconds)
        if Kind.CLIENT_TERMINATE in self.kinds and life.plan.seed % 3:
            await terminate(self.testbed, life, 0)
            # The client gets an error, which is judged, and runs an endless kernel in a new context.
            await trio.sleep(life.plan.seconds)
        life.killed = True
        strike(life.process, signal.SIGKILL)

    async def _watch(self, life: Life) -> None:
        while (remaining := remaining_seconds(self.testbed.history, life, now())) > 0:
            await trio.sleep(remaining)
        life.hung = True
        self.testbed.note("hang", number=life.plan.number, doing=life.doing)
        strike(life.process, signal.SIGKILL)

    def _judge_until(self, time: float) -> None:
        due = [life for life in self._unjudged if life.ended <= time]
        self._unjudged = [life for life in self._unjudged if life.ended > time]
        for life in due:
            for problem in self.problems(life):
                self.testbed.blame(problem)
            self.testbed.counts["wrong results"] += sum(step.wrong for step in life.steps)
            self.testbed.counts["hangs"] += life.hung
            self.testbed.counts["steps"] += len(life.steps)
            self.testbed.counts.update(
                f"error {step.code} in {step.name.split()[0]}{self.of_protocol}" for step in life.steps if step.code
            )
            self.judged += 1

    def problems(self, life: Life) -> Iterator[str]:
        """Yield what is wrong with a client that has ended, each in a sentence."""
        return problems(self.testbed.history, life)

    # --- chaos

    async def _do_chaos(self, cast: trio.Nursery) -> None:
        kinds = self.kinds & KINDS_OF[self.testbed.setup.backend]
        for action in actions(self.seed, self.seconds, kinds, self.pace):
            await self.testbed.until(action.at)
            if self.testbed.busy:
                self.testbed.counts["left out: actions, the daemon was away"] += 1
            elif action.kind is Kind.BOTH_KILL and self.testbed.is_misbehaving:
                self.testbed.counts["left out: actions, a server that hangs would be nobody's"] += 1
            elif action.kind in NEEDS_ITS_DAEMON and self.testbed.has_silent_new_client():
                self.testbed.counts["left out: actions, a server may wait for a silent client"] += 1
            else:
                # Set before the task starts, because the next action may be due before that.
                self.testbed.busy = action.kind in ON_THE_DAEMON
                cast.start_soon(self._act, action)

    async def _act(self, action: Action) -> None:
        try:
            await ACTIONS[action.kind](self.testbed, action)
        finally:
            if action.kind in ON_THE_DAEMON:
                self.testbed.busy = False

    # --- the end

    async def _wait_until_calm(self) -> None:
        """Check that clients that have ended leave nothing in the lists, on the devices or in the processes."""
        await self._listed()
        testbed, server = self.testbed, self.testbed.server()
        for device in range(DEVICES if server and testbed.setup.backend is Backend.EMULATED else 0):
            await testbed.tool(f"set_device_pinned_mem_limit {server.pid} {device} 0\n")
        user = testbed.uids.index(server.uid) if server else 0
        await self._live(ClientPlan(now() - testbed.began, 0, user, "probe", tuple(range(DEVICES)), PROBE_SECONDS, 1))
        if (listed := await self._listed()) not in NO_CLIENTS:
            testbed.blame(f"all clients have ended, and ps shows {listed!r}")
        await testbed.until_so(lambda: not self._crowded(), CALM_SECONDS)
        for problem in self._crowded():
            testbed.blame(problem)

    async def _listed(self) -> str:
        """Return the output of ps as soon as it has no clients, or after some seconds."""
        give_up = now() + CALM_SECONDS
        while (listed := (await self.testbed.tool("ps\n"))[1]) not in NO_CLIENTS and now() < give_up:
            await trio.sleep(LISTEN_SECONDS)
        return listed

    def _crowded(self) -> list[str]:
        server = self.testbed.server()
        executors: list[int] = []
        with suppress(OSError):  # it has ended
            executors = children_of(server.pid) if server else []
        return list(find_crowded(_pid(self.testbed.daemon), _pid(server.process if server else None), executors))

    async def _end(self) -> None:
        testbed = self.testbed
        status, output = await testbed.tool("quit\n")
        if status != 0:
            testbed.blame(f"the last quit ended with {status}: {output!r}")
        if not await testbed.until_gone(testbed.daemon, HANG_SECONDS):
            testbed.blame("the daemon is there after the last quit")


def _pid(process: ProcessKey | None) -> int:
    """Return a process's PID, or 0 if the process does not exist."""
    return process.pid if process is not None and there(process) else 0


async def _read_complaint(process: trio.Process, life: Life) -> None:
    async for piece in process.stderr:
        life.complaint = (life.complaint + piece.decode(errors="replace"))[-5000:]


async def _close(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            await stream.aclose()
