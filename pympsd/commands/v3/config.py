"""The module ``config``: the configuration file, applied to a daemon that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from typing import Final

from attrs import evolve

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Option, Refused, Syntax
from pympsd.commands.v3.output import ABSENT, moment
from pympsd.commands.v3.registry import command, data
from pympsd.configuration.changes import (
    Change,
    CreateNamespace,
    CreatePartition,
    CreateServer,
    DeleteNamespace,
    DeletePartition,
    DeleteServer,
    Impossible,
    SetCgroupLimits,
    SetFeature,
    SetNamespace,
    SetRules,
    SetServer,
    SetShares,
    changes,
)
from pympsd.configuration.in_force import compute_hash, find_differences, render, state_of, surroundings_of
from pympsd.configuration.plan import PartitionPlan
from pympsd.configuration.reader import BadFile, read_plan
from pympsd.state_machine.admission import STARTS_AT_ONCE
from pympsd.state_machine.decide import combine_answers
from pympsd.state_machine.instructions import Instruction, Log, Reply
from pympsd.state_machine.shares import set_shares
from pympsd.state_machine.state.compound_commands import CompoundCommand, Configuration
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus, Source
from pympsd.state_machine.v3.cgroups import replace_limits, set_accounting, set_audit
from pympsd.state_machine.v3.namespaces import create_namespace, delete_namespace, set_namespace
from pympsd.state_machine.v3.partitions import create_partition, delete_partition
from pympsd.state_machine.v3.routing import set_default_socket
from pympsd.state_machine.v3.servers import NotPossible, create_server, delete_server, set_server
from pympsd.state_machine.v3.servers import status as status_of
from pympsd.vocabulary.answers import Answer, Part, refusal
from pympsd.vocabulary.namespaces import DEFAULT
from pympsd.vocabulary.texts import BadText

NO_CHANGE = "no change"
MAX_LISTED: Final = 20
"""Differences that ``config status`` lists."""
_GENERATION: Final = re.compile("[0-9]{1,10}", re.ASCII)
_HASH: Final = re.compile("(?:sha256:)?([0-9a-f]{12,64})", re.ASCII | re.IGNORECASE)


def read_expected(text: str) -> int | str:
    """Read a generation (a number), or the first digits of a SHA-256 in lower case."""
    if _GENERATION.fullmatch(text):
        return int(text)
    found = _HASH.fullmatch(text)
    if found is None:
        raise BadText("a generation, or 12 to 64 hexadecimal digits of a SHA-256,", text)
    return found[1].lower()


@command(Syntax("config apply", required=("file",), flags=("check", "prune", "force")), in_both=True, takes_file=True)
def apply(
    daemon: Daemon,
    caller: Caller,
    file: str,
    text: bytes | None,
    check: bool = False,
    prune: bool = False,
    force: bool = False,
) -> Decision:
    """Read a configuration file, and make the rules, servers and namespaces what it says: what is missing is made,
    what differs is set, and what it does not name stays, or with --prune is deleted if it has no clients (with
    --force also if it has some). --check says what would be done, and what would be refused. An error anywhere in the
    file: nothing is done.
    """
    view.check_daemon_owner(daemon, caller, "config apply")
    if text is None:
        raise Refused(
            "'config apply' needs the text of the file: give it as arguments, not on standard input.",
        )
    surroundings = surroundings_of(daemon)
    try:
        plan, warnings = read_plan(text, surroundings)
    except BadFile as error:
        said = "\n".join(problem.shown(file) for problem in error.problems)
        return Decision(Answer(diagnostic=said, refused=True))
    wanted = changes(plan, state_of(daemon, surroundings), prune=prune, force=force)
    notes = [warning.shown(file) for warning in warnings]
    if check:
        return Decision(_tried(daemon, wanted, notes, force))
    applied = Configuration(
        daemon.configuration.generation + 1, file, moment(caller.at) or "", text=text, plan=(surroundings, plan)
    )
    return Decision(None, tuple(_carry_out(daemon, caller, applied, wanted, notes, force)))


@command(Syntax("config show"), in_both=True)
def show(daemon: Daemon, caller: Caller) -> Decision:
    """Print a configuration file of the rules, servers and namespaces that there are; in protocol 2 also, as
    comments, the commands that set its defaults.
    """
    return data(render(daemon))


@command(Syntax("config status", options={"expect": Option(read_expected, "<hash>|<generation>")}), in_both=True)
def status(daemon: Daemon, caller: Caller, expect: int | str | None = None) -> Decision:
    """Print which configuration is in force; the exit status is 0 if all of it is, a readiness probe. What has been
    changed since counts as failed, and standard error lists it. With --expect the exit status is 0 only if the
    configuration has this generation, or a hash that begins with these 12 to 64 digits: of the file (sha256sum FILE),
    or in protocol 2 of what config show prints.
    """
    known, digest = daemon.configuration, compute_hash(daemon)
    pending = known.starts + (len(known.command.pending) if known.command else 0)
    differences = find_differences(daemon)
    # What was refused usually differs, too.
    failed = max(known.failed, len(differences))
    failed += sum(_failures(daemon, named) for named in daemon.named_servers.values())
    text = (
        f"generation={known.generation} source={known.source or ABSENT} applied={known.applied or ABSENT} "
        f"hash={digest or ABSENT} pending={pending} failed={failed}"
    )
    unexpected = _unexpected(known, digest, expect)
    notes = [*_difference_lines(known, differences), *unexpected]
    if known.source and known.text is None and view.sees_all(daemon, caller):
        notes.append("An earlier version applied this file; apply it again to have 'config status' compare with it.")
    is_refused = bool(pending or failed or unexpected)
    return Decision(Answer((Part(text, logged=False),), "\n".join(notes), refused=is_refused))


def _difference_lines(known: Configuration, differences: list[str]) -> list[str]:
    if not differences:
        return []
    more = len(differences) - MAX_LISTED
    listed = [f"  {text}" for text in (*differences[:MAX_LISTED], *([f"and {more} more"] if more > 0 else []))]
    return [f"Not all of the file is in force. 'config apply {known.source} --check' prints:", *listed]


def _unexpected(known: Configuration, digest: str, expected: int | str | None) -> list[str]:
    """Return the sentence on a configuration other than the expected one; nothing if it is that."""
    if isinstance(expected, int) and expected != known.generation:
        return [f"Generation {known.generation} is in force, not {expected}."]
    if isinstance(expected, str):
        of_file = sha256(known.text).hexdigest() if known.text else ""
        if not digest.startswith(expected) and not of_file.startswith(expected):
            return [
                f"The configuration in force has {f'the hash {digest}' if digest else 'no hash'}, not {expected}."
            ]
    return []


def _failures(daemon: Daemon, named: NamedServer) -> int:
    """Return how much of a server is not in force: itself if it has failed, and each socket that is not there."""
    # The server of a user who named none comes with its clients: they get the reason if it does not.
    is_wanted = named.source is not Source.AUTO and not named.unreachable
    has_failed = is_wanted and status_of(daemon, named) is NamedStatus.FAILED
    return has_failed + bool(named.unopened) + sum(bool(one.unopened) for one in named.namespaces.values())


_SET_FEATURE: Final = {
    "default_socket": set_default_socket,
    "accounts_cgroups": set_accounting,
    "audits_memory": set_audit,
}


def _carry_out(
    daemon: Daemon, caller: Caller, applied: Configuration, wanted: list[Change], notes: list[str], force: bool
) -> Iterator[Instruction]:
    compound = daemon.compound_commands.begin(caller.session)
    compound.notes += notes
    daemon.configuration = evolve(applied, command=compound)
    yield Log("configuration_applied", {"file": applied.source, "generation": applied.generation})
    created = sum(isinstance(change, CreateServer) for change in wanted)
    if created > STARTS_AT_ONCE:
        compound.waits_for_starts = False
        compound.notes.append(f"{created} servers are being started; 'config status' says when all are ready.")
    yield from _begin_all(daemon, compound, wanted, force)


def _tried(daemon: Daemon, wanted: list[Change], notes: list[str], force: bool) -> Answer:
    """Return what would be said of changes: begin them on a copy of the state, for whether one is possible may depend
    on those before it.
    """
    trial = deepcopy(daemon)
    compound = trial.compound_commands.begin(0)
    compound.notes += notes
    for _ in combine_answers(trial.compound_commands, _begin_all(trial, compound, wanted, force)):
        pass  # nothing of it is carried out
    return compound.answer


def _begin_all(daemon: Daemon, compound: CompoundCommand, wanted: list[Change], force: bool) -> Iterator[Instruction]:
    """Begin changes, each a part of the command."""
    for change in wanted:
        if isinstance(change, Impossible):
            compound.failed += 1
            daemon.compound_commands.add_text(compound, change.text)
            continue
        part = daemon.compound_commands.add_part(compound, change.text)
        try:
            yield from _begin(daemon, compound, change, part, force)
        except NotPossible as error:
            yield Reply(part, refusal(str(error)))
    if not wanted:
        daemon.compound_commands.add_text(compound, NO_CHANGE)


def _begin(
    daemon: Daemon, compound: CompoundCommand, change: Change, part: int, force: bool
) -> Iterator[Instruction]:
    """Begin a change; ``part`` is answered when it is done."""
    match change:
        case CreateServer(plan, uid):
            limits = plan.namespaces.get(DEFAULT)
            yield from create_server(daemon, plan.name, uid, plan.devices, limits, Source.CONFIG, part)
            yield from set_server(daemon, plan.name, plan.ceiling, plan.contains_partitions)
            for name, each in plan.namespaces.items():
                if name != DEFAULT:
                    other = daemon.compound_commands.add_part(compound)
                    yield from create_namespace(
                        daemon, plan.name, name, each, other, plan.clients_only.get(name, False)
                    )
            for partition in plan.partitions:
                other = daemon.compound_commands.add_part(compound)
                yield from _create_partition(daemon, plan.name, partition, other)
        case CreateNamespace(server, name, limits, clients_only):
            yield from create_namespace(daemon, server, name, limits, part, clients_only)
        case SetNamespace(server, name, limits, _):
            yield from set_namespace(daemon, server, name, limits)
            yield Reply(part, Answer())
        case SetServer(server, ceiling, contains, _):
            yield from set_server(daemon, server, ceiling, contains)
            yield Reply(part, Answer())
        case CreatePartition(server, partition, _):
            yield from _create_partition(daemon, server, partition, part)
        case DeletePartition(server, there, _):
            yield from delete_partition(daemon, server, there.name, there.device, force, part, Answer())
        case SetRules(rules, _):
            daemon.process_limits.rules = rules
            yield Log("rules_set", {"count": len(rules)})
            yield Reply(part, Answer())
        case SetCgroupLimits(limits, _):
            yield from replace_limits(daemon, limits)
            yield Reply(part, Answer())
        case SetShares(wanted, _):
            yield from set_shares(daemon, wanted)
            yield Reply(part, Answer())
        case SetFeature(name, on):
            yield from _SET_FEATURE[name](daemon, on)
            yield Reply(part, Answer())
        case DeleteServer(name):
            yield from delete_server(daemon, name, force, part)
        case DeleteNamespace(server, name):
            yield from delete_namespace(daemon, server, name, force, part)


def _create_partition(daemon: Daemon, server: str, plan: PartitionPlan, part: int) -> Iterator[Instruction]:
    try:
        yield from create_partition(daemon, server, plan.name, plan.device, plan.chunks, plan.include_remainder)
        yield Reply(part, Answer())
    except NotPossible as error:
        yield Reply(part, refusal(f"SM partition '{server}/{plan.name}': {error}"))
