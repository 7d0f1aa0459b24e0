"""Define the values of a checked configuration: the servers and namespaces that a file names, and their settings."""

from collections.abc import Mapping, Set

from attrs import field, frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.rules import Rule


@frozen
class PartitionPlan:
    """A static SM partition that the file names."""

    name: str
    device: int
    """The daemon's ordinal of the device."""
    chunks: int
    include_remainder: bool = False


@frozen
class ServerPlan:
    """A server that the file names."""

    name: str
    uid: int | None = None
    """The server's user; None for the daemon's user."""
    devices: tuple[int, ...] | None = None
    """The ordinals of the server's devices; None if not stated, which means all devices for a new server."""
    namespaces: dict[str, Limits] = field(factory=dict)
    """The limits of each namespace by name; ``default`` only if the file states something about it."""
    clients_only: dict[str, bool] = field(factory=dict)
    """Whether a namespace refuses operators, by the namespace's name; only namespaces for which the file states it.
    """
    partitions: tuple[PartitionPlan, ...] = ()
    maximum: Limits = field(factory=Limits)
    """The maximum limits of the server's clients, without limits that the file does not state."""
    contains_partitions: bool | None = None
    """Whether a fault affects only its static SM partition; None if the file does not state it."""


@frozen
class Features:
    """The features of a daemon; None for a feature that is not stated."""

    default_socket: bool | None = True
    """Whether clients that do not name a server are served."""
    accounts_cgroups: bool | None = True
    """Whether limits of cgroups are enforced (memacct)."""
    audits_memory: bool | None = False
    """Whether servers log clients' allocations (memacct)."""


@frozen
class Plan:
    """The configuration that a file states."""

    servers: dict[str, ServerPlan] = field(factory=dict)
    rules: tuple[Rule, ...] | None = None
    """The rules in their order; None if the file does not have any statement about rules."""
    features: Features = field(factory=lambda: Features(None, None, None))
    cgroups: CgroupLimits | None = None
    """The limits of cgroups; None if the file does not have any statement about cgroups."""
    shares: dict[str, int] | None = None
    """The shares of each user by resource; None if the file does not state any."""


@frozen
class FileContext:
    """The daemon that reads a file, against which the file is checked."""

    devices: tuple[DeviceProperties, ...]
    uid: int
    """The user as whom the daemon runs."""
    multiuser: bool = False
    pipe_directory: str = ""
    protocol: int = 3
    has_own_servers: bool = True
    """True if the daemon's servers are pympsd's own, not the driver's."""
    partitions: Mapping[str, Set[str]] = field(factory=dict)
    """The names of the SM partitions of the daemon's servers, by server."""
    allowed_devices: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """The ordinals of the devices of those servers that do not have all devices, by server."""


@frozen
class Problem:
    """An error in a file; ``line`` counts from 1."""

    line: int
    text: str

    def render(self, file: str) -> str:
        """Return the message for the user, which names the file and the line."""
        return f"{file}:{self.line}: {self.text}"
