"""A checked configuration: the servers and namespaces that a file names, and their settings."""

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
    """The daemon's ordinal."""
    chunks: int
    include_remainder: bool = False


@frozen
class ServerPlan:
    """A server that the file names."""

    name: str
    uid: int | None = None
    """None: the daemon's user."""
    devices: tuple[int, ...] | None = None
    """The ordinals of its devices; None: not stated, which means all of them for a new server."""
    namespaces: dict[str, Limits] = field(factory=dict)
    """The namespaces by name; ``default`` only if the file states anything about it."""
    clients_only: dict[str, bool] = field(factory=dict)
    """By namespace, if stated: whether it refuses operators."""
    partitions: tuple[PartitionPlan, ...] = ()
    maximum: Limits = field(factory=Limits)
    """The maximum limits of the server's clients, as far as they are stated."""
    contains_partitions: bool | None = None
    """None: not stated."""


@frozen
class Features:
    """The features of a daemon; None: not stated."""

    default_socket: bool | None = True
    """Whether clients that name no server are served."""
    accounts_cgroups: bool | None = True
    """Whether limits of cgroups are enforced (memacct)."""
    audits_memory: bool | None = False
    """Whether allocations are logged (memacct)."""


@frozen
class Plan:
    """A whole file."""

    servers: dict[str, ServerPlan] = field(factory=dict)
    rules: tuple[Rule, ...] | None = None
    """None: not stated."""
    features: Features = field(factory=lambda: Features(None, None, None))
    cgroups: CgroupLimits | None = None
    """None: not stated."""
    shares: dict[str, int] | None = None
    """Each user's shares, by resource. None: not stated."""


@frozen
class FileContext:
    """The daemon that reads a file, against which the file is checked."""

    devices: tuple[DeviceProperties, ...]
    uid: int
    """The user the daemon runs as."""
    multiuser: bool = False
    pipe_directory: str = ""
    protocol: int = 3
    has_own_servers: bool = True
    """True if the daemon's servers are pympsd's own, not the driver's."""
    partitions: Mapping[str, Set[str]] = field(factory=dict)
    """The names of the SM partitions that its servers have, by server."""
    allowed_devices: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """The ordinals of the devices of its servers that do not have all, by server."""


@frozen
class Problem:
    """An error in a file; ``line`` from 1 on."""

    line: int
    text: str

    def render(self, file: str) -> str:
        """Return the line for the user."""
        return f"{file}:{self.line}: {self.text}"
