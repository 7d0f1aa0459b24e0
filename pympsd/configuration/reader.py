"""Read a configuration file in TOML into a `Plan`, or report all errors in it, each with its line and key.

A file is read completely even if it has errors, because an administrator needs to see all of them together. Each
table and each key is checked separately; wrong values are noted with their paths and left out of the plan; at the end
the paths become lines (`positions`). A warning means that a file is valid but probably not what was meant, such as a
rule after one that matches every client.

The keys of limits follow from the table of limits (`pympsd.vocabulary.limit_table`). The vendor's keys are in the
table of a namespace or of a rule, pympsd's own keys in its subtable ``pympsd``, and a server's maxima in the server's
table ``pympsd``, with the prefix ``max_``. A device is named as the server's clients name it.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, Final

from attrs import frozen

from pympsd.configuration.cgroups import read_cgroups
from pympsd.configuration.plan import Features, FileContext, PartitionPlan, Plan, Problem, ServerPlan
from pympsd.configuration.positions import Path, line_of, positions
from pympsd.configuration.rules import read_condition
from pympsd.configuration.tables import Tables, join_path
from pympsd.errors import InputError
from pympsd.state_machine.state.named_server import MAX_NAMESPACES
from pympsd.vocabulary.identities import (
    DEFAULT,
    NO_USER,
    name_problem,
    server_of_user,
    socket_problem,
    user_of_server,
)
from pympsd.vocabulary.limit_table import OWN, VENDORS, WITH_MAXIMUM, Limits
from pympsd.vocabulary.partitions import (
    chunk_count,
    describe_missing_partition,
    has_remainder,
    partition_name_problem,
)
from pympsd.vocabulary.rules import KINDS, Condition, Rule
from pympsd.vocabulary.shares import BY_NAME, TABLE, BadResourceShare, read_share
from pympsd.vocabulary.texts import MAX_COUNT, BadText, read_containment

DEVICE_KEYS: Final = ("uuid", "sm_partitions")
PARTITION_KEYS: Final = ("name", "chunks", "include_remainder")


def read_partitions(
    tables: Tables, path: Path, raw: Any, allowed: tuple[int, ...] | None
) -> tuple[PartitionPlan, ...]:
    """Return the SM partitions that a server's tables of devices state."""
    partitions: list[PartitionPlan] = []
    for number, table in enumerate(tables.tables(path, raw)):
        place = (*path, number)
        tables.check_keys(place, table, DEVICE_KEYS, "a server's device")
        tables.check_own_servers((*place, "sm_partitions"), table)
        device = _device(tables, (*place, "uuid"), table.get("uuid"), allowed)
        place = (*place, "sm_partitions")
        for which, entry in enumerate(tables.tables(place, table.get("sm_partitions", []))):
            partitions.append(_partition(tables, (*place, which), entry, device))
    counts = Counter((plan.name, plan.device) for plan in partitions if plan.name and plan.device >= 0)
    for name, device in (key for key, count in counts.items() if count > 1):
        tables.wrong(path, f"{join_path(path)}: two SM partitions of device {device} have the name {name}")
    # A file with errors is not used, so missing values of a partition do not matter.
    return tuple(partition for partition in partitions if partition.device >= 0)


def _device(tables: Tables, path: Path, raw: Any, allowed: tuple[int, ...] | None) -> int:
    """Return the ordinal of the device that a table describes; -1 if it does not name an existing one."""
    if raw is None:
        tables.wrong(path, f"{join_path(path)} is missing: the UUID of the device")
        return -1
    if not isinstance(raw, str):
        tables.wrong(path, f"{join_path(path)} must be the UUID of a device, a text,", raw)
        return -1
    device = tables.device(path, raw)
    if device >= 0 and allowed is not None and device not in allowed:
        tables.wrong(path, f"{join_path(path)}: the server's allowed_devices lack it")
    return device


def _partition(tables: Tables, path: Path, raw: dict[str, Any], device: int) -> PartitionPlan:
    """Return the SM partition that a table states, with None or a default for wrong values."""
    tables.check_keys(path, raw, PARTITION_KEYS, "an SM partition")
    name, chunks, remainder = raw.get("name"), raw.get("chunks"), raw.get("include_remainder", False)
    problem = partition_name_problem(name) if isinstance(name, str) else "a name is needed"
    if problem:
        tables.wrong((*path, "name"), f"{join_path((*path, 'name'))}: {problem.rstrip('.')}")
    if chunks is None:
        tables.wrong((*path, "chunks"), f"{join_path((*path, 'chunks'))} is missing: the number of chunks")
    elif isinstance(chunks, bool) or not isinstance(chunks, int) or not 1 <= chunks <= MAX_COUNT:
        allowed = f"{join_path((*path, 'chunks'))} must be a number from 1 to {MAX_COUNT},"
        tables.wrong((*path, "chunks"), allowed, chunks)
        chunks = None
    if not isinstance(remainder, bool):
        where = (*path, "include_remainder")
        tables.wrong(where, f"{join_path(where)} must be true or false,", remainder)
    return PartitionPlan("" if problem else str(name), device, chunks or 0, remainder is True)


def check_chunks(tables: Tables, plans: Mapping[str, ServerPlan]) -> None:
    """Check that the devices have enough chunks for the partitions of all servers together."""
    planned = [(partition, name) for name, plan in plans.items() for partition in plan.partitions]
    for device in sorted({partition.device for partition, _ in planned}):
        device_properties, here = (
            tables.context.devices[device],
            [pair for pair in planned if pair[0].device == device],
        )
        path: Path = ("servers", here[-1][1], "devices")
        max_chunks, chunks = chunk_count(device_properties), sum(partition.chunks for partition, _ in here)
        if not max_chunks:
            major, minor = device_properties.compute_capability
            problem = f"static partitions need compute capability 8.0; {device_properties.name} has {major}.{minor}"
            tables.wrong(path, f"{join_path(path)}: {problem}")
        elif chunks > max_chunks:
            servers = ", ".join(dict.fromkeys(name for _, name in here))
            problem = f"the SM partitions of device {device} have {chunks} chunks together, and it has {max_chunks}"
            tables.wrong(path, f"{join_path(path)}: {problem} (servers: {servers})")
        elif any(partition.include_remainder for partition, _ in here) and not has_remainder(device_properties):
            tables.wrong(path, f"{join_path(path)}: the chunks of device {device} leave no SMs over")
        if sum(partition.include_remainder for partition, _ in here) > 1:
            problem = f"one SM partition of device {device} can have include_remainder"
            tables.wrong(path, f"{join_path(path)}: {problem}")


SCHEMA: Final = "1.0"
MAX_NAME: Final = 64
"""The maximum number of characters of a rule's name."""
LIMIT_KEYS: Final = tuple(row.key for row in VENDORS)
OWN_KEYS: Final = ("clients_only", *(row.key for row in OWN))
NAMESPACE_KEYS: Final = (*LIMIT_KEYS, "pympsd")
SERVER_KEYS: Final = ("allowed_devices", "uid", "locality_domains", *LIMIT_KEYS, "namespaces", "devices", "pympsd")
OWN_SERVER_KEYS: Final = (*(f"max_{row.key}" for row in WITH_MAXIMUM), "contain")
RULE_KEYS: Final = ("name", *KINDS, *LIMIT_KEYS)
TOP_KEYS: Final = ("schema_version", "servers", "features", "rules", "cgroups", TABLE)
FEATURE_KEYS: Final = {"memacct": ("enabled", "audit_log"), "context-share": ("enabled", "default_socket")}
NO_DOMAINS: Final = "locality domains are not supported yet: every device here has one"
ALWAYS_SHARED: Final = "context-share cannot be disabled: every client of pympsd runs in a server"
_AT_LINE: Final = re.compile(r" \(at line ([0-9]+), column [0-9]+\)$")


class BadFile(InputError):
    """A file is not a valid configuration; ``problems`` lists its errors by line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{len(problems)} errors")
        self.problems = problems


def read_plan(content: bytes, context: FileContext) -> tuple[Plan, tuple[Problem, ...]]:
    """Return the plan of a file, and warnings; raise BadFile."""
    try:
        return _plan(_decode(content), context)
    except RecursionError:
        raise BadFile((Problem(1, "nested too deeply for a configuration file"),)) from None


def _decode(content: bytes) -> str:
    """Return the text of a file, without the byte order mark with which some editors begin it."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadFile((Problem(line, f"not TOML, because it is not UTF-8: {error.reason}"),)) from None


def _plan(text: str, context: FileContext) -> tuple[Plan, tuple[Problem, ...]]:
    try:
        parsed = tomllib.loads(text)
    except ValueError as error:  # not only tomllib's own error, but also those for dates and long numbers
        raise BadFile((_syntax_problem(text, error),)) from None
    reading = _Reading(context, [], [])
    plan = reading.file(parsed)
    if reading.problems:
        raise BadFile(_locate(text, reading.problems))
    return plan, _locate(text, reading.warnings) if reading.warnings else ()


def _syntax_problem(text: str, error: Exception) -> Problem:
    if "set_int_max_str_digits" in str(error):  # Python's error, which does not state a line
        return Problem(1, "not TOML: a number of thousands of digits")
    match = _AT_LINE.search(str(error))
    line = int(match[1]) if match else text.count("\n") + 1 if "end of document" in str(error) else 1
    return Problem(line, f"not TOML: {_AT_LINE.sub('', str(error))}")


def _locate(text: str, messages: list[tuple[Path, str]]) -> tuple[Problem, ...]:
    where = positions(text)
    return tuple(
        sorted(
            (Problem(line_of(where, path), message) for path, message in messages), key=lambda problem: problem.line
        )
    )


@frozen
class _Reading(Tables):
    def file(self, parsed: dict[str, Any]) -> Plan:
        """Return the plan of a whole file; note all errors in it."""
        self.check_keys((), parsed, TOP_KEYS, "a configuration file")
        version = parsed.get("schema_version")
        if version != SCHEMA:
            verb = "is missing; it is" if version is None else "is"
            self.wrong(("schema_version",), f'schema_version {verb} "{SCHEMA}"{"," if version else ""}', version)
        features = self._features(self.table((), parsed, "features"))
        servers = self.table((), parsed, "servers")
        if self.context.protocol == 2:
            for key in {"servers", "features", "cgroups"} & parsed.keys():
                self.wrong((key,), f"{key}: protocol 2 has only rules; start the daemon with -p 3")
        plans = {name: self._server(name, ("servers", name), servers[name]) for name in servers}
        check_chunks(self, plans)
        rules = self._rules(parsed["rules"]) if "rules" in parsed else None
        self.check_own_servers(("cgroups",), parsed)
        cgroups = read_cgroups(self, parsed["cgroups"]) if "cgroups" in parsed else None
        shares = self._shares(self.table((), parsed, TABLE)) if TABLE in parsed else None
        return Plan(plans, rules, features, cgroups, shares)

    def _shares(self, raw: Mapping[str, Any]) -> dict[str, int]:
        self.check_keys((TABLE,), raw, tuple(BY_NAME), "users' shares")
        shares = {}
        for name in (share_name for share_name in BY_NAME if share_name in raw):
            if BY_NAME[name].is_named and self.context.protocol == 2:
                problem = f"{TABLE}.{name}: protocol 2 has no named servers; start the daemon with -p 3"
                self.wrong((TABLE, name), problem)
                continue
            try:
                shares[name] = read_share(name, raw[name])
            except BadResourceShare as error:
                self.wrong((TABLE, name), str(error))
        return shares

    def _rules(self, raw: Any) -> tuple[Rule, ...]:
        if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
            self.wrong(("rules",), "rules are tables, each under [[rules]],", raw)
            return ()
        rules = tuple(self._rule(number, entry) for number, entry in enumerate(raw))
        for rule in rules[:-1]:
            if not rule.conditions:
                path = ("rules", rule.number - 1)
                self.warnings.append((path, f"rule {rule} has no conditions: those after it are never reached"))
                break
        return rules

    def _rule(self, number: int, raw: dict[str, Any]) -> Rule:
        path = ("rules", number)
        self.check_keys(path, raw, RULE_KEYS, "a rule")
        name = raw.get("name", "")
        if not isinstance(name, str) or not name.isprintable() or len(name) > MAX_NAME:
            self.wrong(
                (*path, "name"),
                f"{join_path((*path, 'name'))} must be a text of one line, {MAX_NAME} characters at most,",
                name,
            )
            name = ""
        conditions = (self._condition((*path, kind), kind, raw[kind]) for kind in KINDS if kind in raw)
        return Rule(number + 1, name, tuple(filter(None, conditions)), self.limits(path, raw, VENDORS))

    def _condition(self, path: Path, kind: str, raw: Any) -> Condition | None:
        if kind == "namespace" and self.context.protocol == 2:
            self.wrong(path, f"{join_path(path)}: protocol 2 has no namespaces; start the daemon with -p 3")
        try:
            return read_condition(kind, raw)
        except BadText as error:
            self.wrong(path, f"{join_path(path)} must be {error.allowed}", raw)
            return None

    def _server(self, name: str, path: Path, raw: Any) -> ServerPlan:
        """Return the plan of a server's table; note the errors in it."""
        if reason := name_problem(name, of_server=True):
            self.wrong(path, reason.rstrip("."))
        if not isinstance(raw, dict):
            self.wrong(path, f"{join_path(path)} must be a table,", raw)
            return ServerPlan(name)
        self.check_keys(path, raw, SERVER_KEYS, "a server")
        if raw.get("locality_domains", False) is not False:
            key = (*path, "locality_domains")
            if isinstance(raw["locality_domains"], bool):
                self.wrong(key, f"{join_path(key)}: {NO_DOMAINS}")
            else:
                self.wrong(key, f"{join_path(key)} must be true or false,", raw["locality_domains"])
        devices = self._devices(path, raw)
        ordinals = self.context.allowed_devices.get(name) if devices is None else devices
        own = self.limits(path, raw, VENDORS, ordinals)
        tables = self.table(path, raw, "namespaces")
        namespaces = {
            space: self._namespace(name, space, (*path, "namespaces", space), tables[space], ordinals)
            for space in tables
        }
        if own != Limits():
            namespaces[DEFAULT] = self._merge(path, own, namespaces.get(DEFAULT, Limits()))
        if (count := len({DEFAULT, *namespaces})) > MAX_NAMESPACES:
            text = f"{join_path(path)} has {count} namespaces with {DEFAULT}; at most {MAX_NAMESPACES} are possible"
            self.wrong((*path, "namespaces"), text)
        self._warn_of_uncapped(path, namespaces)
        clients_only = {
            space: only
            for space, table in tables.items()
            if (only := self._clients_only((*path, "namespaces", space), space, table)) is not None
        }
        uid = self._uid(path, raw)
        if name.startswith("uid_") and (uid is None or name != server_of_user(uid)):
            self.wrong(path, f"{join_path(path)}: uid_<n> is the name of the server of user n, and of no other one")
        partitions = read_partitions(self, (*path, "devices"), raw.get("devices", []), ordinals)
        self._warn_of_missing_partitions(name, path, namespaces, {partition.name for partition in partitions})
        path, table = (*path, "pympsd"), self.table(path, raw, "pympsd")
        self.check_keys(path, table, OWN_SERVER_KEYS, "pympsd's table of a server")
        maximum = self.limits(path, table, WITH_MAXIMUM, ordinals, "max_")
        self.check_own_servers((*path, "contain"), table)
        contains = self.value(path, table, "contain", read_containment, (str,))
        return ServerPlan(name, uid, devices, namespaces, clients_only, partitions, maximum, contains)

    def _namespace(self, server: str, name: str, path: Path, raw: Any, ordinals: tuple[int, ...] | None) -> Limits:
        reason = name_problem(name) or socket_problem(
            self.context.pipe_directory, server, name, for_libcuda=not self.context.has_own_servers
        )
        if reason and name != DEFAULT:
            self.wrong(path, reason.rstrip("."))
        if not isinstance(raw, dict):
            self.wrong(path, f"{join_path(path)} must be a table,", raw)
            return Limits()
        self.check_keys(path, raw, NAMESPACE_KEYS, "a namespace")
        own = self.limits((*path, "pympsd"), self.table(path, raw, "pympsd"), OWN, ordinals)
        return self.limits(path, raw, VENDORS, ordinals).overlay(own)

    def _clients_only(self, path: Path, name: str, raw: Any) -> bool | None:
        """Return the value of clients_only in a namespace's table ``pympsd``; None if it is not stated."""
        own = self.table(path, raw, "pympsd") if isinstance(raw, dict) else {}
        path = (*path, "pympsd")
        self.check_keys(path, own, OWN_KEYS, "pympsd's table of a namespace")
        value = own.get("clients_only")
        if value is not None and not isinstance(value, bool):
            self.wrong((*path, "clients_only"), f"{join_path((*path, 'clients_only'))} must be true or false,", value)
        elif value and name == DEFAULT:
            self.wrong((*path, "clients_only"), f"{join_path(path)}: the sockets of {DEFAULT} are its server's too")
        return value

    def _merge(self, path: Path, own: Limits, default: Limits) -> Limits:
        """Return the limits of namespace ``default``, whose own table takes precedence over the server's keys."""
        for row in VENDORS:
            if None not in (row.of(own), row.of(default)) and row.of(own) != row.of(default):
                beaten = (*path, row.key)
                self.warnings.append((beaten, f"{join_path(beaten)} is beaten by that of namespaces.{DEFAULT}"))
        return own.overlay(default)

    def _warn_of_uncapped(self, path: Path, namespaces: dict[str, Limits]) -> None:
        default = namespaces.get(DEFAULT, Limits())
        capped = any(row.of(limits) for limits in namespaces.values() for row in WITH_MAXIMUM)
        if capped and not any(row.of(default) for row in WITH_MAXIMUM):
            who = f"{join_path(path)}: namespace {DEFAULT} has no limits"
            self.warnings.append((path, f"{who}, and others have; namespaces.{DEFAULT} may set them"))

    def _warn_of_missing_partitions(
        self, server: str, path: Path, namespaces: Mapping[str, Limits], own: Set[str]
    ) -> None:
        there = own | self.context.partitions.get(server, set())
        for name, limits in namespaces.items():
            if limits.sm_partition and limits.sm_partition not in there:
                place = (*path, "namespaces", name, "pympsd", "sm_partition")
                self.warnings.append(
                    (place, describe_missing_partition(server, name, limits.sm_partition).rstrip("."))
                )

    def _uid(self, path: Path, raw: Mapping[str, Any]) -> int | None:
        """Return the uid of a server's user; None for the daemon's user, or after noting an error."""
        uid = raw.get("uid", user_of_server(str(path[-1])))
        if uid is None:
            return None
        path = (*path, "uid")
        if isinstance(uid, bool) or not isinstance(uid, int) or not 0 <= uid < NO_USER:
            self.wrong(path, f"{join_path(path)} must be a user's number,", uid)
            return None
        if self.context.multiuser and uid != 0:
            self.wrong(path, f"{join_path(path)} must be 0 with --multiuser, because its servers are root's;", uid)
        elif self.context.uid not in (0, uid):
            own = self.context.uid
            self.wrong(
                path, f"{join_path(path)} must be {own}, because this daemon can serve only its own user;", uid
            )
        return uid

    def _devices(self, path: Path, raw: Mapping[str, Any]) -> tuple[int, ...] | None:
        if "allowed_devices" not in raw:
            return None
        words, path = raw["allowed_devices"], (*path, "allowed_devices")
        if isinstance(words, str):
            words = [word.strip() for word in words.split(",")]
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            allowed = 'a text such as "0,1", or a list of one text or more, such as ["0", "1"],'
            self.wrong(path, f"{join_path(path)} must be {allowed}", raw["allowed_devices"])
            return None
        indices = [self.device(path, word) for word in words]
        if len(set(indices)) < len(indices) and -1 not in indices:
            self.wrong(path, f"{join_path(path)} names a device twice")
        return None if -1 in indices else tuple(indices)

    def _features(self, features: Mapping[str, Any]) -> Features:
        """Return the features that a file's table states, after checking the table."""
        values: dict[str, Any] = {}
        self.check_keys(("features",), features, tuple(FEATURE_KEYS), "features")
        for name, keys in FEATURE_KEYS.items():
            table = self.table(("features",), features, name)
            self.check_keys(("features", name), table, keys, name)
            if name == "memacct":
                for key in keys:
                    self.check_own_servers(("features", name, key), table)
            for key in keys:
                if key in table:
                    self._feature_key(("features", name, key), table[key])
                    values[f"{name}.{key}"] = table[key]
        default_socket = values.get("context-share.default_socket")
        sharing = None if default_socket is None else default_socket == "on"
        return Features(sharing, values.get("memacct.enabled"), values.get("memacct.audit_log"))

    def _feature_key(self, path: Path, value: Any) -> None:
        if path[-1] == "default_socket":
            if value not in ("on", "off"):
                self.wrong(path, f'{join_path(path)} must be "on" or "off",', value)
        elif not isinstance(value, bool):
            self.wrong(path, f"{join_path(path)} must be true or false,", value)
        elif "context-share" in path and not value:
            self.wrong(path, f"{join_path(path)}: {ALWAYS_SHARED}")
