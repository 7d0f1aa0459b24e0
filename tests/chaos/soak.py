"""A soak: clients and chaos as scheduled, every client judged at its end, and at the end of all nothing left.

Call `soak`; it returns a summary that can be written as JSON. Its ``problems`` are empty when all was well.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import trio
from attrs import asdict, define, field
from processes import adopt_orphans, children_of

from tests.chaos.acts import ACTS, terminate
from tests.chaos.episodes import SLACK
from tests.chaos.history import FOR_EVER, Incident, Life
from tests.chaos.identity import Who, strike, there
from tests.chaos.leaks import Before, crowded, leaks
from tests.chaos.outcomes import FAULT_CODES, HANG_SECONDS, patience, problems
from tests.chaos.schedule import DEVICES, Action, ClientPlan, Kind, Round, actions, clients, rounds
from tests.chaos.stage import ON_THE_DAEMON, Stage, now, users
from tests.chaos.story import judge
from tests.chaos.summary import Summary

AT_ONCE: Final = 6
"""More clients than this do not run at once, at pace 1."""
LISTEN_SECONDS: Final = 0.1
PROBE_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 15.0
NOBODY: Final = ("", "Server not found\n")


@define
class Soak:
    """One run."""

    stage: Stage
    seed: int
    seconds: float
    kinds: frozenset[Kind]
    pace: float = 1.0
    _unjudged: list[Life] = field(factory=list, init=False)
    judged: int = field(default=0, init=False)

    async def run(self) -> None:
        """All of it, to the daemon's end."""
        stage = self.stage
        await stage.start_daemon()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_house)
            async with trio.open_nursery() as cast:
                cast.start_soon(self._start_clients, cast)
                cast.start_soon(self._do_chaos, cast)
            await self._settle()
            await self._end()
            nursery.cancel_scope.cancel()
        stage.listen()
        stage.reap()
        self._judge_until(FOR_EVER)

    async def _keep_house(self) -> None:
        while True:
            self.stage.listen()
            self.stage.reap()
            # What a client met may be explained by what another one says a moment later. All that was said until then
            # is heard first: this process, too, may have had no time for long.
            due = now() - SLACK
            await trio.sleep(LISTEN_SECONDS)
            self._judge_until(due)

    # --- clients

    async def _start_clients(self, cast: trio.Nursery) -> None:
        for plan in clients(self.seed, self.seconds, self.pace):
            await self.stage.until(plan.at)
            if len(self.stage.living()) < AT_ONCE * self.pace:
                cast.start_soon(self._live, plan)
            else:
                self.stage.counts["left out: clients, too many at once"] += 1

    async def _live(self, plan: ClientPlan) -> None:
        life, process = await self.stage.start_client(plan)
        self.stage.stdin[plan.number] = process.stdin
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_complaint, process, life)
                nursery.start_soon(self._end_endless, life)
                nursery.start_soon(self._watch, life)
                await self._hear(process, life)
                life.status = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            life.ended = now()
            del self.stage.stdin[plan.number]
            await _close(process)
            self.stage.release(process.pid)
        self.stage.note("ended", number=plan.number, status=life.status, doing=life.doing, steps=len(life.steps))
        self._unjudged.append(life)

    async def _hear(self, process: trio.Process, life: Life) -> None:
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self._note_fault(life, said)
                life.hear(said)

    def _note_fault(self, life: Life, said: dict[str, Any]) -> None:
        what, _, name = said["doing"].partition(" ")
        if what == "fault":
            facts = {"pid": life.pid, "client": life.plan.number, "uid": life.uid, "device": said["device"]}
            facts["context"] = said["context"]
            self.stage.history.incidents.append(
                Incident(Kind.CLIENT_FAULT, 0, said["t"], said["t"], code=FAULT_CODES[name], note=name, **facts)
            )
            self.stage.counts[f"fault {name}"] += 1
            self.stage.note("client_fault", name=name, **facts)

    async def _end_endless(self, life: Life) -> None:
        """A kernel that never ends is an operator's business."""
        while life.doing != "endless":
            await trio.sleep(LISTEN_SECONDS)
        await trio.sleep(life.plan.seconds)
        if Kind.CLIENT_TERMINATE in self.kinds and life.plan.seed % 3:
            await terminate(self.stage, life, 0)
            # What comes of that is judged; it goes on with another one.
            await trio.sleep(life.plan.seconds)
        life.killed = True
        strike(life.who, signal.SIGKILL)

    async def _watch(self, life: Life) -> None:
        while (left := patience(self.stage.history, life, now())) > 0:
            await trio.sleep(left)
        life.hung = True
        self.stage.note("hang", number=life.plan.number, doing=life.doing)
        strike(life.who, signal.SIGKILL)

    def _judge_until(self, time: float) -> None:
        due = [life for life in self._unjudged if life.ended <= time]
        self._unjudged = [life for life in self._unjudged if life.ended > time]
        for life in due:
            for problem in problems(self.stage.history, life):
                self.stage.blame(problem)
            self.stage.counts["wrong results"] += sum(step.wrong for step in life.steps)
            self.stage.counts["hangs"] += life.hung
            self.stage.counts["steps"] += len(life.steps)
            self.stage.counts.update(
                f"error {step.code} in {step.name.split()[0]}" for step in life.steps if step.code
            )
            self.judged += 1

    # --- chaos

    async def _do_chaos(self, cast: trio.Nursery) -> None:
        for action in actions(self.seed, self.seconds, self.kinds, self.pace):
            await self.stage.until(action.at)
            if self.stage.busy:
                self.stage.counts["left out: actions, the daemon was away"] += 1
            else:
                # Said now: the next one may be due before this one has its first turn.
                self.stage.busy = action.kind in ON_THE_DAEMON
                cast.start_soon(self._act, action)

    async def _act(self, action: Action) -> None:
        try:
            await ACTS[action.kind](self.stage, action)
        finally:
            if action.kind in ON_THE_DAEMON:
                self.stage.busy = False

    # --- the end

    async def _settle(self) -> None:
        """All clients have ended: nothing of theirs is left, neither in the lists nor on the devices."""
        await self._listed()
        stage, server = self.stage, self.stage.server()
        for device in range(DEVICES if server else 0):
            await stage.tool(f"set_device_pinned_mem_limit {server.pid} {device} 0\n")
        user = stage.uids.index(server.uid) if server else 0
        await self._live(ClientPlan(now() - stage.began, 0, user, "probe", tuple(range(DEVICES)), PROBE_SECONDS, 1))
        if (listed := await self._listed()) not in NOBODY:
            stage.blame(f"all clients have ended, and ps shows {listed!r}")
        with trio.move_on_after(SETTLE_SECONDS):
            while self._crowded():
                await trio.sleep(LISTEN_SECONDS)
        for problem in self._crowded():
            stage.blame(problem)

    async def _listed(self) -> str:
        """Return what ps shows when it has had time to show nobody."""
        give_up = now() + SETTLE_SECONDS
        while (listed := (await self.stage.tool("ps\n"))[1]) not in NOBODY and now() < give_up:
            await trio.sleep(LISTEN_SECONDS)
        return listed

    def _crowded(self) -> list[str]:
        server = self.stage.server()
        executors: list[int] = []
        with suppress(OSError):  # it has ended meanwhile
            executors = children_of(server.pid) if server else []
        return list(crowded(_pid(self.stage.daemon), _pid(server.who if server else None), executors))

    async def _end(self) -> None:
        stage = self.stage
        status, said = await stage.tool("quit\n")
        if status != 0:
            stage.blame(f"the last quit ended with {status}: {said!r}")
        if not await stage.until_gone(stage.daemon, HANG_SECONDS):
            stage.blame("the daemon is there after the last quit")


def _pid(process: Who | None) -> int:
    """Return a process's PID, 0 when it is not there."""
    return process.pid if process is not None and there(process) else 0


async def _read_complaint(process: trio.Process, life: Life) -> None:
    async for data in process.stderr:
        life.complaint = (life.complaint + data.decode(errors="replace"))[-5000:]


async def _close(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            await stream.aclose()


def soak(
    seed: int, seconds: float, kinds: Collection[Kind], journal: Path, keep: Path, pace: float = 1.0
) -> dict[str, Any]:
    """Run a soak; return its summary. ``journal`` is written as it goes; ``keep``: there the logs of a failure go."""
    total = Summary(seed, seconds, pace, sorted(kinds))
    adopt_orphans()
    try:
        with journal.open("w") as file:
            for part in rounds(seed, seconds):
                total.add(part, *_round(part, frozenset(kinds), pace, file, keep / f"round-{part.number}"))
    finally:
        adopt_orphans(False)  # the orphans of later tests in this process are not its business
    return total.as_json()


def _round(part: Round, kinds: frozenset[Kind], pace: float, journal: IO[str], keep: Path) -> tuple[Stage, int, int]:
    """Run a part of a soak in a directory of its own; return its stage, how many were judged and how much is left."""
    before = Before.now()
    directory = Path(tempfile.mkdtemp(prefix="pympsd-soak-"))
    try:
        stage = Stage(directory, users(), journal, part.scene)
        stage.began = now()
        stage.note("round", number=part.number, seconds=part.seconds, **asdict(part.scene))
        stage.prepare()
        run = Soak(stage, part.seed, part.seconds, kinds, pace)
        trio.run(run.run)
        left = leaks(before, directory, stage.uids)
        for problem in (*_last_words(stage), *(f"left behind: {one}" for one in left)):
            stage.blame(problem)
        if stage.problems:
            shutil.copytree(directory / "log", keep, dirs_exist_ok=True)
        return stage, run.judged, len(left)
    finally:
        shutil.rmtree(directory)


def _last_words(stage: Stage) -> list[str]:
    attached = [life.pid for life in stage.history.lives if life.attached != FOR_EVER]
    return judge(stage.story, stage.killed, stage.forced, attached)
