"""A round of protocol 3: servers and namespaces are made, changed and deleted while they have clients.

One operator gives the commands, one after the other, and compares the lists with the expected effect of each.
Meanwhile daemon, keeper, servers and clients are killed. Every error of a client needs a cause at the client's place.
"""

from __future__ import annotations

import csv
import json
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import trio
from attrs import define, field

from tests.chaos.actions import ACTIONS
from tests.chaos.history import FOR_EVER, Life, Step
from tests.chaos.identity import key_of, strike
from tests.chaos.recoveries import SLACK
from tests.chaos.schedule import Action, ClientPlan, Kind
from tests.chaos.soak import AT_ONCE, CALM_SECONDS, LISTEN_SECONDS, Soak
from tests.chaos.testbed import now
from tests.chaos.verdicts import HANG_SECONDS

SERVERS: Final = ("a", "b", "c")
NAMESPACES: Final = ("default", "hi", "lo")
PLACES: Final = (*((server, namespace) for server in SERVERS for namespace in NAMESPACES), ("", ""))
"""The places where clients connect; the last one is the daemon's own directory."""
LIMITS: Final = (
    {"active-thread-percentage": "30"},
    {"pinned-memory-limit": "2G"},
    {"client-priority": "1"},
    {"pinned-memory-limit": "1=1G", "active-thread-percentage": "75"},
)
VERBS: Final = ("create", "create", "delete", "make", "make", "make", "remove", "set", "apply", "apply", "show")
LIST_SECONDS: Final = 30.0
"""Seconds within which a daemon answers, even if others were killed as soon as they had started."""
WORKS: Final = ("copies", "kernels", "contexts", "streams", "memory")
STRIKES: Final = {
    Kind.CLIENT_KILL: 5,
    Kind.CLIENT_STOP: 2,
    Kind.SERVER_KILL: 4,
    Kind.DAEMON_KILL: 3,
    Kind.DAEMON_REPLACE: 2,
    Kind.DAEMON_STOP: 1,
    Kind.KEEPER_KILL: 2,
}
FIRST_SECONDS: Final = 2.0
"""Seconds before the first kill, in which everything starts."""
NOT_PERMITTED, CONNECTION_FAILED, RPC_FAILURE, NOT_READY, TERMINATED = 800, 805, 806, 807, 810
REFUSED: Final = frozenset({CONNECTION_FAILED, NOT_READY})
"""Results at a place that does not exist, or is being deleted or created."""
CUT_OFF: Final = frozenset({RPC_FAILURE, CONNECTION_FAILED, NOT_READY, TERMINATED})
Places = frozenset[tuple[str, str]]
"""Servers and their namespaces."""


@define
class Change:
    """A time in which places were changed, or a server's process was killed."""

    began: float
    touched: Places
    ended: float = FOR_EVER
    left: Places | None = None
    """The places after it, or None if they are the same as before."""


@define
class NamedSoak(Soak):
    """One round."""

    of_protocol: ClassVar[str] = " (protocol 3)"
    places: Places = frozenset()
    changes: list[Change] = field(factory=list)

    async def _start_clients(self, cast: trio.Nursery) -> None:
        source = random.Random(f"{self.seed}/named clients")
        at, number = 1.0, 0
        while (at := at + source.choice((0.1, 0.4, 0.8, 1.5)) / self.pace) < self.seconds:
            await self.testbed.until(at)
            number += 1
            place = source.choice(
                [(server, namespace) for server in SERVERS for namespace in NAMESPACES] + [("", "")]
            )
            other_user = source.random() < 0.05
            plan = self._plan(at, number, place, other_user, source)
            if len(self.testbed.living()) < AT_ONCE * self.pace:
                cast.start_soon(self._live, plan)

    def _plan(
        self, at: float, number: int, place: tuple[str, str], other_user: bool, source: random.Random
    ) -> ClientPlan:
        server, namespace = place
        user = (SERVERS.index(server) + other_user) % len(SERVERS) if server else 0
        # Clients can reach namespace default through the server's directory, too.
        short = namespace == "default" and source.random() < 0.5
        folder = "/".join(filter(None, (str(self.testbed.directory / "pipe"), server, "" if short else namespace)))
        work, devices = source.choice(WORKS), tuple(source.sample(range(3), source.choice((1, 1, 2))))
        settings = (("CUDA_MPS_PIPE_DIRECTORY", folder),)
        return ClientPlan(
            at, number, user, work, devices, source.choice((0.5, 2.0, 5.0)), source.getrandbits(32), settings
        )

    def _place_of(self, plan: ClientPlan) -> tuple[str, str]:
        """Return the server and namespace of a client; empty names for a client of the top directory."""
        folder = dict(plan.settings)["CUDA_MPS_PIPE_DIRECTORY"]
        server, _, namespace = folder.removeprefix(str(self.testbed.directory / "pipe")).strip("/").partition("/")
        return server, (namespace or "default") if server else ""

    # --- the operator

    async def _do_chaos(self, cast: trio.Nursery) -> None:
        cast.start_soon(self._strike)
        source = random.Random(f"{self.seed}/named commands")
        await self._command(source, "apply", len(SERVERS))
        while now() < self.testbed.began + self.seconds:
            await self._command(source, source.choice(VERBS), source.randint(1, len(SERVERS)))
            await trio.sleep(source.choice((0, 0, 0.2, 0.7)))

    async def _command(self, source: random.Random, verb: str, count: int) -> None:
        """Give a command (a file names ``count`` servers); check that the lists show its effect."""
        server, namespace = source.choice(SERVERS), source.choice(NAMESPACES)
        forced = source.random() < 0.6
        before, began = self.places, now()
        of_server = frozenset(place for place in before if place[0] == server)
        uid = self.testbed.uids[SERVERS.index(server)]
        force = ["--force"] * forced
        match verb:
            case "create":
                words = ["server", "create", server, f"--uid={uid}"]
                expected = before | {(server, "default")}
            case "delete":
                words, expected = ["server", "delete", server, *force], before - of_server
            case "make":
                words = ["namespace", "create", namespace, f"--server={server}", *_options(source)]
                expected = before | {(server, namespace)}
            case "remove":
                words = ["namespace", "delete", namespace, f"--server={server}", *force]
                expected = before - {(server, namespace)}
            case "set":
                words, expected = ["namespace", "set", namespace, f"--server={server}", *_options(source)], before
            case "apply":
                prune = source.random() < 0.5
                places = self._write_file(source, count)
                words = ["config", "apply", str(self._file), *["--prune"] * prune, *force]
                expected = places if prune else before | places
            case _:
                words, expected = ["config", "show"], before
        change = Change(began, before ^ expected)
        self.changes.append(change)
        status, output = await self._say(*words)
        if verb == "show" and status == 0:
            self._file.write_text(output)
            status, output = await self._say("config", "apply", str(self._file))
            if status == 0 and output != "no change\n" and "starts" not in output:
                self.testbed.blame(f"what config show prints changes something: {output!r}")
        await self._compare(" ".join(words), status, expected, change)

    async def _compare(self, words: str, status: int | None, target: Places, change: Change) -> None:
        before, after = self.places, await self._listed_places()
        if after is None:
            self.testbed.blame(f"{words}: the lists cannot be had afterwards")
            return
        # If the command failed, the daemon may have been killed before or after the change.
        allowed = {0: (target,)}.get(status, (before, target))  # type: ignore[arg-type]
        if after not in allowed and not (status != 0 and "apply" in words):
            self.testbed.blame(f"{words}: status {status}, and there are {sorted(after)}, not {sorted(target)}")
        change.ended, change.touched, change.left = now(), change.touched | (before ^ after), after
        self.places = after
        self.testbed.counts[f"named {' '.join(words.split()[:2])}: {status}"] += 1

    def _write_file(self, source: random.Random, count: int) -> Places:
        lines, server_names = ['schema_version = "1.0"'], set()
        for server in source.sample(SERVERS, count):
            lines += [f"[servers.{server}]", f"uid = {self.testbed.uids[SERVERS.index(server)]}"]
            server_names.add((server, "default"))
            for namespace in source.sample(NAMESPACES, source.randint(0, len(NAMESPACES))):
                server_names.add((server, namespace))
                lines.append(f"[servers.{server}.namespaces.{namespace}]")
                lines += [f'{key.replace("-", "_")} = "{value}"' for key, value in source.choice(LIMITS).items()]
        self._file.write_text("\n".join(lines))
        return frozenset(server_names)

    @property
    def _file(self) -> Path:
        return self.testbed.directory / "chaos.toml"

    async def _listed_places(self) -> Places | None:
        """Return the existing places, except those of hostile users and of users' own clients."""
        until = now() + LIST_SECONDS
        while now() < until:
            status, output = await self._say("namespace", "list", "--format=csv,noheader")
            if status == 0:
                rows = [(row[1], row[0]) for row in csv.reader(output.splitlines()) if row[2] != "Stopping"]
                return frozenset(row for row in rows if not row[0].startswith(("uid_", "hostile_")))
            await trio.sleep(1)
        return None

    async def _say(self, *words: str) -> tuple[int | None, str]:
        return await self.testbed.tool("", words)

    # --- what is killed

    async def _strike(self) -> None:
        source = random.Random(f"{self.seed}/named strikes")
        at, number = FIRST_SECONDS, 0
        kinds = [kind for kind in STRIKES if kind in self.kinds]
        while kinds and (at := at + source.uniform(0.3, 2.0) / self.pace) < self.seconds:
            await self.testbed.until(at)
            number += 1
            (kind,) = source.choices(kinds, [STRIKES[kind] for kind in kinds])
            action = Action(at, number, kind, source.random(), source.random() * 0.8)
            if kind is Kind.SERVER_KILL:
                await self._kill_server(action)
            else:
                await ACTIONS[kind](self.testbed, action)

    async def _kill_server(self, action: Action) -> None:
        status, output = await self._say("server", "list", "--format=csv,noheader")
        rows = [row for row in csv.reader(output.splitlines()) if status == 0 and row[2].isdigit()]
        if not rows:
            return
        name, _, pid, *_ = rows[int(action.pick * len(rows))]
        began = now()
        with suppress(OSError):  # it has ended
            with self.testbed.incident(action.kind, action.number, pid=int(pid), note=name):
                strike(key_of(int(pid)), signal.SIGKILL)
            touched = frozenset((name, namespace) for namespace in NAMESPACES) if name in SERVERS else {("", "")}
            self.changes.append(Change(began, frozenset(touched), now() + SLACK))

    # --- judging

    def problems(self, life: Life) -> Iterator[str]:
        """Yield what is wrong with a client that has ended, each in a sentence."""
        place = self._place_of(life.plan)
        name = f"client {life.plan.number} (PID {life.pid}, uid {life.uid}) of {'/'.join(place) or 'the top'}"
        if life.hung:
            yield f"{name} hangs in {life.doing!r}"
        elif not life.killed and life.status != 0:
            yield f"{name} ended with status {life.status} in {life.doing!r}: {life.complaint.strip()[-500:]}"
        owner = self.testbed.uids[SERVERS.index(place[0])] if place[0] else life.uid
        for step in life.steps:
            at = f"{step.name!r} at {step.began:.3f} to {step.ended:.3f}"
            if step.wrong:
                yield f"{name}: {step.wrong} wrong in {at}"
            if step.code and step.code not in self._allowed(life, step, place, life.uid != owner):
                yield f"{name}: {step.code} of {step.call} in {at} has no cause ({step.why})"
            if not step.code and life.uid != owner and step.name == "init":
                yield f"{name} is served there, and it is user {owner}'s"
            if not step.code and step.name != "close" and self._is_absent(place, step):
                yield f"{name}: {at} succeeds, and the namespace was not there"

    def _allowed(self, life: Life, step: Step, place: tuple[str, str], other_user: bool) -> frozenset[int]:
        """Return the errors that the actions at a client's place since its start explain."""
        codes: frozenset[int] = frozenset({NOT_PERMITTED} if other_user else ())
        touched = any(
            place in change.touched and life.started <= change.ended
            for change in self.changes
            if change.began <= step.ended
        )
        if touched or (place[0] and place not in self._left_before(life.started)):
            codes |= REFUSED if step.name == "init" else CUT_OFF
            codes |= {RPC_FAILURE}
        return codes

    def _left_before(self, time: float) -> Places:
        """Return the places at a time; during a change, those from before it."""
        states = [change.left for change in self.changes if change.ended <= time and change.left is not None]
        return states[-1] if states else frozenset()

    def _is_absent(self, place: tuple[str, str], step: Step) -> bool:
        """Whether a place surely did not exist from before a step until after it."""
        overlaps = any(
            place in (change.touched | (change.left or frozenset()))
            for change in self.changes
            if change.began <= step.ended and change.ended >= step.began - SLACK
        )
        return bool(place[0]) and not overlaps and place not in self._left_before(step.began - SLACK)

    # --- the end

    async def _wait_until_calm(self) -> None:
        """Check that no client is listed, that all servers can be used, and that deleted servers leave nothing."""
        testbed = self.testbed
        if (listed := await self._until_said(("[]\n",), "client", "list", "--all", "--format=json")) != "[]\n":
            testbed.blame(f"all clients have ended, and client list shows {listed}")
        for name in sorted({server for server, _ in self.places}):
            # A server that was killed while it had no clients is configured, and starts for its next client.
            output = await self._until_said(("Ready\n", "Configured\n"), "server", "get", name, "status")
            if output not in ("Ready\n", "Configured\n"):
                testbed.blame(f"server {name} is {output!r} at the end")
        status, output = await self._say("server", "list", "--format=json")
        for row in json.loads(output) if status == 0 else ():
            done = await self._say("server", "delete", row["name"])
            if done != (0, "") or (testbed.directory / "pipe" / row["name"]).exists():
                testbed.blame(f"server delete {row['name']}: {done}, or its directory stays")
        if (listed := await self._say("server", "list", "--format=json")) != (0, "[]\n"):
            testbed.blame(f"all servers are deleted, and server list shows {listed}")

    async def _until_said(self, expected: tuple[str, ...], *words: str) -> str:
        """Repeat a query until it returns an expected text, or the time is over; return the last answer."""
        give_up = now() + CALM_SECONDS
        while (output := (await self._say(*words))[1]) not in expected and now() < give_up:
            await trio.sleep(LISTEN_SECONDS)
        return output

    async def _end(self) -> None:
        status, output = await self._say("-q")
        if status != 0:
            self.testbed.blame(f"the last quit ended with {status}: {output!r}")
        if not await self.testbed.until_gone(self.testbed.daemon, HANG_SECONDS):
            self.testbed.blame("the daemon is there after the last quit")


def _options(source: random.Random) -> list[str]:
    return [f"--{key}={value}" for key, value in source.choice(LIMITS).items()]
