"""The module ``config``: apply a configuration file to a running daemon, and query it.

`apply` reads the file as a plan, compares it with the state (pympsd.configuration.changes) and begins a list of
changes. Each change is a part of one compound command, because servers start and sockets open later. The operator
gets the answer when the last part is complete, with a line for each change and for each refused part. A file with an
error changes nothing. ``--check`` begins the changes on a copy of the state, because one change may make the next one
possible.

`status` compares the last applied file with the state, so that it reports what operators have changed since.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from typing import Final

from attrs import evolve

from pympsd.commands.grammar.privileges import Caller, sees_all
from pympsd.commands.grammar.registry import BOTH, Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Option, Syntax
from pympsd.commands.v3.output import ABSENT, data
from pympsd.configuration import changes
from pympsd.configuration.in_force import compute_hash, context_of, find_differences, render, state_of
from pympsd.configuration.plan import PartitionPlan
from pympsd.configuration.reader import BadFile, read_plan
from pympsd.state_machine.cgroups import replace_limits, set_accounting, set_audit
from pympsd.state_machine.decide import combine_answers
from pympsd.state_machine.instructions import Instruction, Log, Reply
from pympsd.state_machine.named_servers import NotPossible, create_server, delete_server, set_server
from pympsd.state_machine.named_servers import status as status_of
from pympsd.state_machine.namespaces import create_namespace, delete_namespace, set_namespace
from pympsd.state_machine.partitions import create_partition, delete_partition
from pympsd.state_machine.registration import set_default_socket
from pympsd.state_machine.shares import set_shares
from pympsd.state_machine.state.compound_commands import CompoundCommand, Configuration
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus, Source
from pympsd.vocabulary.answers import Answer, AnswerPart, refusal
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.texts import BadText, moment

NO_CHANGE = "no change"
MAX_LISTED: Final = 20
"""The maximum number of differences that ``config status`` lists."""
_GENERATION: Final = re.compile("[0-9]{1,10}", re.ASCII)
_HASH: Final = re.compile("(?:sha256:)?([0-9a-f]{12,64})", re.ASCII | re.IGNORECASE)


def read_expected(text: str) -> int | str:
    """Return a generation (a number), or the first digits of a SHA-256 in lower case; raise BadText."""
    if _GENERATION.fullmatch(text):
        return int(text)
    match = _HASH.fullmatch(text)
    if match is None:
        raise BadText("a generation, or 12 to 64 hexadecimal digits of a SHA-256,", text)
    return match[1].lower()


@command(
    Syntax("config apply", required=("file",), flags=("check", "prune", "force")),
    protocols=BOTH,
    takes_file=True,
    owner_only=True,
)
def apply(
    daemon: Daemon,
    caller: Caller,
    file: str,
    text: bytes | None,
    check: bool = False,
    prune: bool = False,
    force: bool = False,
) -> Decision:
    """Apply a configuration file: create the servers and namespaces that are missing, set the limits and rules that
    differ, and keep what the file does not name. With --prune, delete what it does not name and has no clients; with
    --force, even if it has clients. --check prints what would change and what would be refused. If the file has an
    error, nothing is changed.
    """
    if text is None:
        raise CommandRefused(
            "'config apply' needs the text of the file: give the command as arguments, not on standard input."
        )
    context = context_of(daemon)
    try:
        plan, warnings = read_plan(text, context)
    except BadFile as error:
        problems = "\n".join(problem.render(file) for problem in error.problems)
        return Decision(Answer(diagnostic=problems, refused=True))
    planned = changes.changes(plan, state_of(daemon, context), prune=prune, force=force)
    notes = [warning.render(file) for warning in warnings]
    if check:
        return Decision(_try_changes(daemon, planned, notes, force))
    applied = Configuration(
        daemon.configuration.generation + 1, file, moment(caller.at) or "", text=text, plan=(context, plan)
    )
    return Decision(None, tuple(_carry_out(daemon, caller, applied, planned, notes, force)))


@command(Syntax("config show"), protocols=BOTH)
def show(daemon: Daemon, caller: Caller) -> Decision:
    """Print the rules, servers and namespaces in force as a configuration file; in protocol 2 also, as comments, the
    commands that set the defaults.
    """
    return data(render(daemon))


@command(
    Syntax("config status", options={"expect": Option(read_expected, "<hash>|<generation>|<file>")}), protocols=BOTH
)
def status(daemon: Daemon, caller: Caller, expect: int | str | None = None) -> Decision:
    """Print which configuration is in force. The exit status is 0 if all of it is, so that it can serve as a
    readiness probe; settings that were changed since count as failed, and standard error lists them. With --expect
    the exit status is 0 only if the configuration has this generation, or a hash that begins with these 12 to 64
    digits: the hash of the file (sha256sum FILE), or in protocol 2 also that of the output of config show. The path
    of a file, with a slash (/etc/mps.toml, ./mps.toml), means the hash of its present contents.
    """
    configuration, digest = daemon.configuration, compute_hash(daemon)
    pending = configuration.starts + (len(configuration.command.pending) if configuration.command else 0)
    differences = find_differences(daemon)
    # A refused change usually is a difference too.
    failed = max(configuration.failed, len(differences))
    failed += sum(_failures(daemon, server) for server in daemon.named_servers.values())
    text = (
        f"generation={configuration.generation} source={configuration.source or ABSENT} "
        f"applied={configuration.applied or ABSENT} hash={digest or ABSENT} pending={pending} failed={failed}"
    )
    unexpected = _compare_expected(configuration, digest, expect)
    notes = [*_difference_lines(configuration, differences), *unexpected]
    if configuration.source and configuration.text is None and sees_all(daemon, caller):
        notes.append("An earlier version applied this file; apply it again to have 'config status' compare with it.")
    is_refused = bool(pending or failed or unexpected)
    return Decision(Answer((AnswerPart(text, logged=False),), "\n".join(notes), refused=is_refused))


def _difference_lines(configuration: Configuration, differences: list[str]) -> list[str]:
    if not differences:
        return []
    more = len(differences) - MAX_LISTED
    lines = [f"  {text}" for text in (*differences[:MAX_LISTED], *([f"and {more} more"] if more > 0 else []))]
    return [f"Not all of the file is in force. 'config apply {configuration.source} --check' prints:", *lines]


def _compare_expected(configuration: Configuration, digest: str, expected: int | str | None) -> list[str]:
    """Return a sentence about a configuration that is not the expected one; an empty list if it is."""
    if isinstance(expected, int) and expected != configuration.generation:
        return [f"Generation {configuration.generation} is in force, not {expected}."]
    if isinstance(expected, str):
        of_file = sha256(configuration.text).hexdigest() if configuration.text else ""
        if not digest.startswith(expected) and not of_file.startswith(expected):
            return [
                f"The configuration in force has {f'the hash {digest}' if digest else 'no hash'}, not {expected}."
            ]
    return []


def _failures(daemon: Daemon, server: NamedServer) -> int:
    """Return how many parts of a server have failed: the server itself, and each socket that could not be opened."""
    # A user's own server starts with its first client, which gets the reason if the server fails.
    is_configured = server.source is not Source.AUTO and not server.unreachable
    has_failed = is_configured and status_of(daemon, server) is NamedStatus.FAILED
    return (
        has_failed + bool(server.unopened) + sum(bool(namespace.unopened) for namespace in server.namespaces.values())
    )


_SET_FEATURE: Final = {
    "default_socket": set_default_socket,
    "accounts_cgroups": set_accounting,
    "audits_memory": set_audit,
}


def _carry_out(
    daemon: Daemon,
    caller: Caller,
    applied: Configuration,
    planned: list[changes.Change],
    notes: list[str],
    force: bool,
) -> Iterator[Instruction]:
    """Begin the planned changes as parts of a compound command; yield the instructions."""
    compound = daemon.compound_commands.begin(caller.session)
    compound.notes += notes
    daemon.configuration = evolve(applied, command=compound)
    yield Log("configuration_applied", {"file": applied.source, "generation": applied.generation})
    created = sum(isinstance(change, changes.CreateServer) for change in planned)
    if created > daemon.options.policy.max_starts:
        compound.waits_for_starts = False
        compound.notes.append(f"{created} servers are being started; 'config status' reports when all are ready.")
    yield from _begin_all(daemon, compound, planned, force)


def _try_changes(daemon: Daemon, planned: list[changes.Change], notes: list[str], force: bool) -> Answer:
    """Return the answer that changes would have, without making them.

    Begin the changes on a copy of the state, because earlier changes may decide whether a later one is possible.
    """
    trial = deepcopy(daemon)
    compound = trial.compound_commands.begin(0)
    compound.notes += notes
    for _ in combine_answers(trial.compound_commands, _begin_all(trial, compound, planned, force)):
        pass  # the instructions are not carried out
    return compound.answer


def _begin_all(
    daemon: Daemon, compound: CompoundCommand, planned: list[changes.Change], force: bool
) -> Iterator[Instruction]:
    """Begin all changes, each as a part of the compound command."""
    for change in planned:
        if isinstance(change, changes.Impossible):
            compound.failed += 1
            daemon.compound_commands.add_text(compound, str(change))
            continue
        part = daemon.compound_commands.add_part(compound, str(change))
        try:
            yield from _begin(daemon, compound, change, part, force)
        except NotPossible as error:
            yield Reply(part, refusal(str(error)))
    if not planned:
        daemon.compound_commands.add_text(compound, NO_CHANGE)


def _begin(
    daemon: Daemon, compound: CompoundCommand, change: changes.Change, part: int, force: bool
) -> Iterator[Instruction]:
    """Begin a change; ``part`` is answered when the change is complete."""
    match change:
        case changes.CreateServer(plan, uid):
            limits = plan.namespaces.get(DEFAULT)
            yield from create_server(daemon, plan.name, uid, plan.devices, limits, Source.CONFIG, part)
            yield from set_server(daemon, plan.name, plan.maximum, plan.contains_partitions)
            for name, namespace_limits in plan.namespaces.items():
                if name != DEFAULT:
                    next_part = daemon.compound_commands.add_part(compound)
                    yield from create_namespace(
                        daemon, plan.name, name, namespace_limits, next_part, plan.clients_only.get(name, False)
                    )
            for partition in plan.partitions:
                next_part = daemon.compound_commands.add_part(compound)
                yield from _create_partition(daemon, plan.name, partition, next_part)
        case changes.CreateNamespace(server, name, limits, clients_only):
            yield from create_namespace(daemon, server, name, limits, part, clients_only)
        case changes.SetNamespace(server, name, limits, _):
            yield from set_namespace(daemon, server, name, limits)
            yield Reply(part, Answer())
        case changes.SetServer(server, maximum, contains, _):
            yield from set_server(daemon, server, maximum, contains)
            yield Reply(part, Answer())
        case changes.CreatePartition(server, partition, _):
            yield from _create_partition(daemon, server, partition, part)
        case changes.DeletePartition(server, there, _):
            yield from delete_partition(daemon, server, there.name, there.device, force, part, Answer())
        case changes.SetRules(rules, _):
            daemon.process_limits.rules = rules
            yield Log("rules_set", {"count": len(rules)})
            yield Reply(part, Answer())
        case changes.SetCgroupLimits(limits, _):
            yield from replace_limits(daemon, limits)
            yield Reply(part, Answer())
        case changes.SetShares(shares, _):
            yield from set_shares(daemon, shares)
            yield Reply(part, Answer())
        case changes.SetFeature(name, on):
            yield from _SET_FEATURE[name](daemon, on)
            yield Reply(part, Answer())
        case changes.DeleteServer(name):
            yield from delete_server(daemon, name, force, part)
        case changes.DeleteNamespace(server, name):
            yield from delete_namespace(daemon, server, name, force, part)


def _create_partition(daemon: Daemon, server: str, plan: PartitionPlan, part: int) -> Iterator[Instruction]:
    try:
        yield from create_partition(daemon, server, plan.name, plan.device, plan.chunks, plan.include_remainder)
        yield Reply(part, Answer())
    except NotPossible as error:
        yield Reply(part, refusal(f"SM partition '{server}/{plan.name}': {error}"))
