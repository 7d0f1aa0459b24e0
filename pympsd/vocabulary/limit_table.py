"""The limits of namespaces, servers and clients: one table, from which everything else about a limit follows.

Theory of operation
===================

The problem: an operator can limit a client in four places, with the same limits in each. Its *namespace* has limits
(``namespace set``, ``server set``, the configuration file), its server may have *maxima* (``--max-...``), a *rule*
may fit its process, and its own *environment* may ask for less. Whoever adds a limit should not have to visit all
readers, lists, files and messages in which limits occur.

The idea: `Limits` holds what one of these places states, and None for a limit that the place does not state. `LIMITS`
has a row for each limit: its name, its reader, its text, and how `combine` decides between the places. Everything
else loops over the rows:

- the options of commands (pympsd/commands/v3/options.py) and the cells of lists (pympsd/commands/v3/view.py);
- the configuration file: read (pympsd/configuration/reader.py), written (``show.py``) and compared (``changes.py``);
- the log lines, the state file and the message AdmitClient, which contain `Limits` as they are.

    namespace            maximum              rule             environment
    50 %                 30 % on device 1     -                0=40, priority 1
      \\____________________\\_____________ combine ______________/
                device 0: 40 %    device 1: 30 %    priority 1

A limit by device is a dictionary by the daemon's device ordinal. The percentage also has the key ALL_DEVICES, for
every device without an entry of its own: it can be set before the devices are known. A limit of memory for all
devices becomes an entry for each, because no entry means no limit.

Invariants: neither a rule nor the environment ever raises a limit above the namespace's, and nothing raises one above
a maximum. The environment replaces one limit only, the namespace's client priority, but never with a higher priority
than a rule's.

To add a limit: a field of `Limits`, a row of LIMITS, and its enforcement. The server has the client's limits, already
combined, in pympsd_server/state_machine/client_limits.py, and its executor gets a Quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from attrs import field, fields, frozen

from pympsd.vocabulary import texts
from pympsd.vocabulary.limits import ALL_DEVICES, ClientPriority, MemoryGroup, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import NO_PARTITION, ChosenPartition

V = TypeVar("V")


@frozen
class Limits:
    """The limits that one place states, or a change of them; None if they are not stated.

    The names are those of the state file and of messages.
    """

    thread_percentage: dict[int, ThreadPercentage] | None = None
    """The percentage of each client, by device ordinal or ALL_DEVICES."""
    pinned_memory: dict[int, PinnedMemory] | None = None
    """The bytes that each client may hold, by device ordinal; a device without an entry has no limit."""
    client_priority: ClientPriority | None = None
    total_memory: dict[int, PinnedMemory] | None = None
    """The bytes that all clients together may hold, by device ordinal; a device without an entry has no limit."""
    sm_partition: str | None = None
    """The static SM partition that each client gets, by name; empty if clients name theirs themselves."""

    def overlay(self, change: Limits) -> Limits:
        """Return these limits, with the limits that a change states in place of the old ones."""
        both = ((name, getattr(change, name), getattr(self, name)) for name in _FIELDS)
        return Limits(**{name: before if new is None else new for name, new, before in both})


_FIELDS: Final = tuple(field_.name for field_ in fields(Limits))
NO_LIMITS: Final = Limits()


@frozen
class ClientLimits:
    """The limits of an admitted client, as the daemon sends them to its server."""

    own: Limits = NO_LIMITS
    """The limits of the client's namespace, or in protocol 2 of the client's server."""
    bounds: tuple[Limits, ...] = ()
    """The limits that ``own`` never exceeds: the maxima of the client's server, and the limits of the client's
    rule."""
    devices: tuple[int, ...] | None = None
    """The ordinals of the devices that the client may see, in the client's order; None means all devices."""
    namespace: str = ""
    partitions: dict[int, ChosenPartition] = field(factory=dict)
    """The client's part of each device in static use, by device ordinal."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """The limits of memory that the client shares with other clients, by device ordinal."""
    audited: bool = False
    """True if the memory that the client takes and returns is logged."""
    static: bool = False
    """True if no percentage holds on devices in static use, not even the client's own (protocol 2)."""

    def combine(self, environment: Limits = NO_LIMITS) -> Limits:
        """Return the limits that hold for the client; see the function of this name."""
        return combine(self.own, *self.bounds, environment=environment)


def combine(own: Limits, *bounds: Limits, environment: Limits = NO_LIMITS) -> Limits:
    """Return the limits that hold for a client. No other function decides a client's limits.

    ``own`` are those of its namespace (in protocol 2: of its server), ``bounds`` its server's maxima and its rule's
    limits, and ``environment`` the requests of its variables. A row that has no limit in any of them stays None.

    The daemon passes the namespace's, the maxima and the rule's on to the server (`ClientLimits`), which calls this
    when the client has connected and its environment is known. For a server of the driver the daemon calls it without
    an environment, which that driver reads itself.

        >>> combine(Limits(percentages(50.0)), Limits(percentages(30.0))).thread_percentage
        {-1: ThreadPercentage(value=30.0)}
    """
    return Limits(
        **{
            row.field: row.combine(row.of(own), row.of(environment), [row.of(bound) for bound in bounds])
            for row in LIMITS
        }
    )


def percentages(value: float) -> dict[int, ThreadPercentage]:
    """Return the limit of one percentage for all devices."""
    return {ALL_DEVICES: ThreadPercentage(value)}


def find_on_device(values: Mapping[int, V] | None, index: int) -> V | None:
    """Return the entry of a limit by device that holds for a device; None if it has no limit there."""
    return None if values is None else values.get(index, values.get(ALL_DEVICES))


def percentage_on(limits: Limits, index: int = ALL_DEVICES) -> ThreadPercentage:
    """Return the percentage of a device, or of every device without an entry of its own."""
    return find_on_device(limits.thread_percentage, index) or ThreadPercentage()


def find_differing_percentages(limits: Limits, indices: Iterable[int]) -> dict[int, float]:
    """Return the percentage of each of some devices, by index; nothing if all have the same."""
    by_device = {index: percentage_on(limits, index).value for index in indices}
    return by_device if len(set(by_device.values())) > 1 else {}


def count_bytes(memory: Mapping[int, PinnedMemory] | None) -> dict[int, int]:
    """Return limits of memory in bytes, by device ordinal."""
    return {index: limit.value for index, limit in (memory or {}).items()}


def lowest(limits: Iterable[Mapping[int, V] | None]) -> dict[int, V] | None:
    """Return the lowest entry for each device of several limits by device; None if there is none."""
    present = [limit for limit in limits if limit is not None]
    if not present:
        return None
    least: dict[int, V] = {}
    for index in dict.fromkeys(index for limit in present for index in limit):
        entries: Any = (find_on_device(limit, index) for limit in present)
        least[index] = min(entry for entry in entries if entry is not None)
    return least


def _combine_by_device(own: Any, environment: Any, bounds: Sequence[Any]) -> Any:
    return lowest((own, environment, *bounds))


def _combine_priority(own: Any, environment: Any, bounds: Sequence[Any]) -> Any:
    """Return the client's level, else the namespace's, but no higher priority than a bound's (1: below normal)."""
    levels = (environment or own, *bounds)
    return max((level for level in levels if level is not None), default=None)


@frozen
class LimitRow:
    """A row of the table."""

    name: str
    """The name of the limit's option (a server's maximum has ``max-`` before it) and of its column; see `key`."""
    field: str
    """The name of the attribute in `Limits`."""
    read: Callable[[str], Any]
    """A function that reads the limit's text; raises BadText. For a limit by device it returns a dictionary by the
    name of each device, "" for all."""
    form: str
    """The placeholder of the value in the usage of commands."""
    render: Callable[[Any], str]
    """A function that returns the text of the limit's value; for a limit by device, of one entry."""
    number: Callable[[Any], Any]
    """A function that returns the limit's value for JSON; for a limit by device, of one entry."""
    combine: Callable[[Any, Any, Sequence[Any]], Any]
    """A function that decides between the values of a namespace, of the environment and of bounds."""
    default: Any = None
    """The value that holds if none is stated; for a limit by device, that of an entry."""
    is_by_device: bool = False
    is_for_all: bool = False
    """True if a value for all devices is kept as ALL_DEVICES, not as an entry for each."""
    has_maximum: bool = False
    """True if a server may have a maximum of this limit."""
    is_own: bool = False
    """True if the limit is not the vendor's: its key is in a namespace's table ``pympsd``, and no rule has it."""
    types: tuple[type, ...] = (str,)
    """The types of its value in a configuration file."""
    driver_lacks: Callable[[Any], str] = lambda _: ""
    """A function that returns why a value is not possible with the driver's own server; empty if it is possible."""

    @property
    def key(self) -> str:
        """The limit's key in a configuration file, and the keyword of its option."""
        return self.name.replace("-", "_")

    @property
    def is_for_devices(self) -> bool:
        """Whether a server without devices has no such limit."""
        return self.is_by_device and not self.is_for_all

    def of(self, limits: Limits) -> Any:
        """Return the limit's value in ``limits``, or None."""
        return getattr(limits, self.field)

    def entries(self, limits: Limits, indices: Sequence[int]) -> list[Any]:
        """Return the entries of the limit for some devices; one entry if all are equal, or if the limit is not by
        device.

        Without indices, return the entry that holds for all devices.
        """
        value = self.of(limits)
        if not self.is_by_device:
            return [self.default if value is None else value]
        found = (find_on_device(value, index) for index in indices or (ALL_DEVICES,))
        entries = [self.default if entry is None else entry for entry in found]
        return entries[:1] if len(entries) > 1 and len(set(entries)) == 1 else entries

    def text(self, limits: Limits, indices: Sequence[int]) -> str:
        """Return the limit as text: one value if all of some devices have the same, else one for each.

        A device is named by its position in ``indices``, as the clients that see these devices name it.
        """
        entries = self.entries(limits, indices)
        if len(entries) == 1:
            return self.render(entries[0])
        return ",".join(f"{position}={self.render(entry)}" for position, entry in enumerate(entries))

    def json(self, limits: Limits, indices: Sequence[int]) -> Any:
        """Return the limit's value in JSON, as in `text`: a value, or an object with one for each device."""
        entries = self.entries(limits, indices)
        if len(entries) == 1:
            return self.number(entries[0])
        return {str(position): self.number(entry) for position, entry in enumerate(entries)}

    def differs(self, first: Limits, second: Limits, indices: Iterable[int]) -> bool:
        """Return whether two places state different values; for a limit by device, whether they differ for one of
        some devices.
        """
        return self.entries(first, tuple(indices)) != self.entries(second, tuple(indices))

    def indices(self, *places: Limits) -> list[int]:
        """Return the device ordinals and ALL_DEVICES under which some places have entries; none if not by device."""
        return (
            sorted({ALL_DEVICES, *(index for place in places for index in self.of(place) or ())})
            if self.is_by_device
            else []
        )

    def apply_change(self, before: Any, change: Mapping[int, Any], indices: Iterable[int]) -> dict[int, Any]:
        """Return the entries of a limit by device after a change, by device ordinal or ALL_DEVICES; None removes an
        entry.

        ``indices``: those of all devices.
        """
        entries: dict[int, Any] = dict(before or {})
        for index, entry in change.items():
            if index == ALL_DEVICES:
                entries = {} if entry is None else dict.fromkeys([index] if self.is_for_all else indices, entry)
            elif entry is None:
                entries.pop(index, None)
            else:
                entries[index] = entry
        return entries


def _number_of_memory(limit: PinnedMemory | None) -> int | None:
    return None if limit is None else limit.value


_MEMORY: Final = texts.read_by_device(texts.read_memory, "limit", "0=4G,1=8G")
LIMITS: Final = (
    LimitRow(
        "pinned-memory-limit",
        "pinned_memory",
        _MEMORY,
        "<limit>",
        texts.memory_text,
        _number_of_memory,
        _combine_by_device,
        is_by_device=True,
        has_maximum=True,
    ),
    LimitRow(
        "active-thread-percentage",
        "thread_percentage",
        texts.read_by_device(texts.read_percentage, "percentage", "0=50,1=25"),
        "<percentage>",
        texts.percentage_text,
        lambda percentage: percentage.value,
        _combine_by_device,
        default=ThreadPercentage(),
        is_by_device=True,
        is_for_all=True,
        has_maximum=True,
        types=(str, int, float),
        driver_lacks=lambda by_word: ": it has one percentage for all devices" if by_word.keys() - {""} else "",
    ),
    LimitRow(
        "client-priority",
        "client_priority",
        texts.read_priority,
        "0|1",
        str,
        lambda priority: priority.level,
        _combine_priority,
        default=ClientPriority(),
        types=(str, int),
    ),
    LimitRow(
        "total-memory-limit",
        "total_memory",
        _MEMORY,
        "<limit>",
        texts.memory_text,
        _number_of_memory,
        _combine_by_device,
        is_by_device=True,
        is_own=True,
        driver_lacks=lambda _: (
            ": it has limits of single clients only; the pinned memory limit of a namespace applies to each client"
        ),
    ),
    LimitRow(
        "sm-partition",
        "sm_partition",
        texts.read_partition,
        "<name>|none",
        lambda name: name or NO_PARTITION,
        lambda name: name or None,
        lambda own, environment, bounds: own,
        default="",
        is_own=True,
        driver_lacks=lambda name: " of this release" if name else "",
    ),
)
"""Every limit, in the order in which lists and files have them."""
PINNED_MEMORY, PERCENTAGE, PRIORITY, TOTAL_MEMORY, SM_PARTITION = LIMITS
BY_DEVICE: Final = tuple(row for row in LIMITS if row.is_by_device)
VENDORS: Final = tuple(row for row in LIMITS if not row.is_own)
# Lists and files show these rows in the order of their names.
WITH_MAXIMUM: Final = tuple(sorted((row for row in LIMITS if row.has_maximum), key=lambda row: row.name))
OWN: Final = tuple(sorted((row for row in LIMITS if row.is_own), key=lambda row: row.name))
