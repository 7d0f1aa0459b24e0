"""Limits on the resources that a user can take from the daemon: each user's share of each resource, and reserves for
others.

Theory of operation. One unprivileged user must not be able to stop the daemon for everybody else. Therefore every
resource that a connection or a command can take has one row in RESOURCES, which is the only source of

- the option ``--user-share NAME=VALUE``, the variable PYMPSD_USER_SHARES and the table ``[shares]`` of a
  configuration file;
- the refusals, ``share list``, the metrics, and the tables of docs/security.md and the manual page.

Three bounds hold at the same time:

1. *The share*: what one user may have. Root and the user who started the daemon have no share: they own the daemon.
2. *The total*: what everybody together may have, root included. Where a total depends on the machine, it is a part of
   the open descriptors that the daemon may have (RLIMIT_NOFILE).
3. *The reserves*: parts of the total that other users' requests leave free. What users make explicitly (a named
   server, a namespace) leaves the reserves of root and of users' own servers; a user's own server, ``uid_N``, which
   the daemon makes for the user's first client, leaves that of root only. Of the 256 servers for example::

       |-- explicit servers of users --|-- users' own servers --|-- root --|
       0                              128                      224        256

   Shares alone would not be enough, because many users can take a share each.

What must never happen: that a request of root, or the first client of another user, is refused because of what users
made explicitly. And that something is counted twice: the state machine counts from the state that exists anyway.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import Factory, field, frozen

from pympsd.errors import InputError
from pympsd.vocabulary.mistyped import find_similar

OPTION: Final = "--user-share"
VARIABLE: Final = "PYMPSD_USER_SHARES"
TABLE: Final = "shares"
"""The name of the configuration file's table of shares."""
RESERVE_PARTS: Final = 8
"""The number of parts of a total in which reserves are counted: eighths."""
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30}
_VALUE: Final = re.compile(r"([0-9]{1,12})([KMG]?)B?", re.ASCII | re.IGNORECASE)


class BadResourceShare(InputError, ValueError):
    """Raised for a share that is not allowed.

    The message is a sentence without its full stop, which explains what is allowed.
    """


@frozen
class SharedResource:
    """A resource of the daemon that users share: its default, its bounds and its reserves."""

    name: str
    """The name of the resource in the option, the variable and the file."""
    share: int
    """The share of one user, unless an administrator sets it."""
    maximum: int
    """The largest share that can be set."""
    description: str
    """A sentence for the documents: what is counted, and the cost of each."""
    minimum: int = 0
    """The smallest share that can be set."""
    unit: str = field(default=Factory(lambda self: self.name, takes_self=True))
    """The unit of the values, in the plural."""
    part: int = 0
    """The default share is at most this part of the total: 4 is a quarter; 0 if it is independent of the total."""
    total: int = 0
    """The bound of all users together; 0 if there is none, or `of_descriptors` states it."""
    of_descriptors: int = 0
    """The total as eighths of the daemon's RLIMIT_NOFILE; 0 if the total does not depend on it."""
    root_reserve: int = 0
    """The eighths of the total that other users leave for root."""
    own_reserve: int = 0
    """The eighths of the total that explicit requests leave for users' own servers."""
    is_named: bool = True
    """True if the resource exists in protocol 3 only, as named servers do."""

    def total_of(self, descriptors: int) -> int:
        """Return how much all users together may have; 0 means without a bound.

        Args:
            descriptors: The daemon's limit of open files; some totals are a part of it.
        """
        return descriptors * self.of_descriptors // RESERVE_PARTS if self.of_descriptors else self.total

    def count_for_users(self, descriptors: int, *, own: bool) -> int:
        """Return how much users other than root may have together.

        Args:
            descriptors: The daemon's limit of open files.
            own: Whether the request is for a user's own server, which may use the part reserved for such servers.
        """
        reserve = self.root_reserve if own else self.root_reserve + self.own_reserve
        return self.total_of(descriptors) * (RESERVE_PARTS - reserve) // RESERVE_PARTS


SERVERS: Final = SharedResource(
    "servers",
    share=16,
    maximum=256,
    description="Named servers. A user's own server (uid_N) is not part of the share.",
    total=256,
    root_reserve=1,
    own_reserve=3,
)
PROCESSES: Final = SharedResource(
    "processes",
    share=64,
    maximum=1 << 16,
    description="Processes of a user's named servers, about 33 MB each: the server, and an executor for each of its "
    "devices, or for each static SM partition that contains faults.",
)
NAMESPACES: Final = SharedResource(
    "namespaces",
    share=64,
    maximum=1 << 16,
    description="Namespaces of a user's servers, other than default.",
)
DESCRIPTORS: Final = SharedResource(
    "descriptors",
    share=1024,
    maximum=1 << 20,
    description="File descriptors of the daemon for a user's servers and namespaces.",
    part=4,
    of_descriptors=4,
    root_reserve=3,
    own_reserve=2,
)
SM_CHUNKS: Final = SharedResource(
    "sm-chunks",
    unit="% of a device's SM chunks",
    share=50,
    maximum=100,
    description="Chunks in the static SM partitions of a user's servers, on each device separately.",
    total=100,
    root_reserve=2,
)
CONNECTIONS: Final = SharedResource(
    "connections",
    share=4096,
    minimum=16,
    maximum=1 << 20,
    description="Connections of a user's clients and commands to the daemon, over all sockets; a connection of "
    "libcuda counts as three.",
    part=2,
    of_descriptors=2,
    root_reserve=1,
    is_named=False,
)
BUFFERS: Final = SharedResource(
    "buffers",
    unit="bytes of buffers",
    share=16 << 20,
    minimum=4 << 20,
    maximum=64 << 20,
    description="Memory for messages from a user's connections that the daemon has not handled yet, and for answers "
    "that the user's programs have not read yet.",
    total=160 << 20,
    root_reserve=1,
    is_named=False,
)
RESOURCES: Final = (SERVERS, PROCESSES, NAMESPACES, DESCRIPTORS, SM_CHUNKS, CONNECTIONS, BUFFERS)
BY_NAME: Final = {resource.name: resource for resource in RESOURCES}


@frozen
class Shares:
    """The shares in force: the administrator's settings, and otherwise the defaults."""

    given: Mapping[str, int] = field(factory=dict)
    """The shares that an administrator has set with the option or the variable, by the resource's name."""
    descriptors: int = 1024
    """The limit of the daemon's open descriptors (RLIMIT_NOFILE)."""
    configured: Mapping[str, int] = field(factory=dict)
    """The shares that the configuration file sets, which take precedence over the option."""

    def share(self, resource: SharedResource) -> int:
        """Return how much of a resource one user may have, in the resource's unit."""
        value = self.configured.get(resource.name, self.given.get(resource.name))
        if value is not None:
            return value
        largest = self.total(resource) // resource.part if resource.part else resource.share
        return max(resource.minimum, min(resource.share, largest))

    def total(self, resource: SharedResource) -> int:
        """Return how much of a resource all users together may have; 0 means without a bound."""
        return resource.total_of(self.descriptors)

    def count_for_users(self, resource: SharedResource, *, own: bool = True) -> int:
        """Return how much of a resource users other than root may have together.

        Args:
            resource: The resource.
            own: As in `SharedResource.count_for_users`.
        """
        return resource.count_for_users(self.descriptors, own=own)


def read_shares(texts: Iterable[str]) -> dict[str, int]:
    """Return the shares that texts set, by the names of resources.

    Args:
        texts: Values of the option or the variable: ``servers=16,buffers=64M``.

    Raises:
        BadResourceShare: A resource does not exist, or its share is not allowed.

    >>> read_shares(["servers=16,buffers=64M"])
    {'servers': 16, 'buffers': 67108864}
    """
    shares: dict[str, int] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise BadResourceShare(f"a user's share must be RESOURCE=VALUE, as in servers=16, not {pair!r}")
        shares[name] = read_share(name, value)
    return shares


def read_share(name: str, value: object) -> int:
    """Return the share of a resource that a text or a number means.

    Args:
        name: The resource.
        value: A number with or without K, M or G, or an integer from a configuration file.

    Raises:
        BadResourceShare: The resource does not exist, or the share is not allowed.
    """
    resource = BY_NAME.get(name)
    if resource is None:
        similar = find_similar(name, BY_NAME)
        suggestion = f"did you mean {similar}? Users" if similar else "they"
        raise BadResourceShare(f"users have no share of {name!r}; {suggestion} have shares of {', '.join(BY_NAME)}")
    number = _number(resource, value)
    if number is None or not resource.minimum <= number <= resource.maximum:
        form = "a number of bytes, optionally followed by K, M or G," if resource is BUFFERS else "a number"
        raise BadResourceShare(
            f"the share of {name} must be {form} from {resource.minimum} to {resource.maximum}, not {value!r}"
        )
    return number


def _number(resource: SharedResource, value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[2] and resource is not BUFFERS):
        return None
    return int(match[1]) << _UNITS[match[2].upper()]
