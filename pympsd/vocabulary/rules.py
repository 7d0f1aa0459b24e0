"""Limits by rule: the conditions that a rule tests, and the test whether a client's process meets them.

The first rule whose conditions a process meets applies to it. A user can give any name to a program, and make any
cgroup below that of the user's own service manager, but a process cannot leave its user, its groups, and the cgroup
that root has put it into.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Final

from attrs import field, frozen

from pympsd.errors import InputError
from pympsd.vocabulary.limit_table import Limits

_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII)
_POD: Final = re.compile(r"(?:[a-z-]+-)?pod([0-9a-f_-]{32,36})(?:\.slice)?", re.ASCII)
_SLURM_JOB: Final = re.compile(
    r"/(?:system\.slice/(?:[^/]+_)?slurmstepd\.scope|slurm[^/]*(?:/uid_\d+)?)/job_(\d+)(?=/|$)"
)
_USERS_MANAGER: Final = re.compile(r"user@\d+\.service", re.ASCII)


class Unknown(InputError):
    """Raised when a rule cannot be tested, because the daemon cannot see that property of the process.

    The message explains why. The client is then refused, because the rule may limit it.
    """


@frozen
class Origin:
    """The properties of a process that rules test. None if the daemon cannot see the property."""

    uid: int
    groups: tuple[int, ...] = ()
    cgroups: tuple[str, ...] | None = None
    """The process's paths in the hierarchies of cgroups: several with cgroup v1; the last one is cgroup v2's."""
    executable: str | None = None


@frozen
class Condition:
    """A condition on a process: one of its properties has one of these values, which may be patterns.

    >>> str(Condition("user", ("1000", "1001")))
    'user=1000,1001'
    """

    kind: str
    """The property that the condition tests, one of KINDS."""
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}={','.join(self.values)}"

    def values_in(self, origin: Origin, namespace: str) -> list[str]:
        """Return the values of the property that a process has.

        Args:
            origin: The process.
            namespace: Its namespace of protocol 3, as ``server/namespace``.

        Raises:
            Unknown: The daemon cannot see the property.
        """
        if self.kind == "namespace":
            return [namespace]
        return list(_READERS[self.kind](origin))

    def fits(self, values: Sequence[str]) -> bool:
        """Return whether one of a process's values matches one of the condition's."""
        fits = _FITS.get(self.kind, fnmatchcase)
        return any(fits(actual, value) for actual in values for value in self.values)


@frozen
class Rule:
    """A rule: limits for the processes that meet all of its conditions.

    ``number`` is its place in the configuration file, from 1.
    """

    number: int
    name: str = ""
    conditions: tuple[Condition, ...] = ()
    limits: Limits = field(factory=Limits)

    def __str__(self) -> str:
        return f"{self.number} ('{self.name}')" if self.name else str(self.number)

    def examine(self, origin: Origin, namespace: str) -> tuple[bool, str]:
        """Return whether a process meets all conditions, and a sentence that explains the result.

        Raises:
            Unknown: The daemon cannot see a property that a condition tests.
        """
        reasons = []
        for condition in self.conditions:
            try:
                actual = condition.values_in(origin, namespace)
            except Unknown as error:
                raise Unknown(f"rule {self} tests the process's {condition.kind}, but {error}") from None
            reason = f"{condition.kind} is {', '.join(actual) or 'none'}"
            if not condition.fits(actual):
                return False, f"{reason}, not {' or '.join(condition.values)}"
            reasons.append(reason)
        return True, "; ".join(reasons) or "the rule has no conditions"


def first_fitting(rules: Sequence[Rule], origin: Origin, namespace: str) -> Rule | None:
    """Return the first rule that a process meets, which is the one that applies to it; None if it meets none.

    Raises:
        Unknown: A rule before it cannot be tested.
    """
    return next((rule for rule in rules if rule.examine(origin, namespace)[0]), None)


def _cgroups(origin: Origin) -> tuple[str, ...]:
    if origin.cgroups is None:
        raise Unknown("the daemon cannot see the cgroup")
    return origin.cgroups


def _executables(origin: Origin) -> tuple[str, ...]:
    if origin.executable is None:
        raise Unknown("the daemon cannot see the executable")
    return (origin.executable,)


def _trustworthy_parts(origin: Origin) -> Iterator[str]:
    """Yield the parts of the cgroups' paths, down to a user's own service manager; below it, the user decides."""
    for path in _cgroups(origin):
        parts = path.strip("/").split("/")
        yield from takewhile(lambda part: not _USERS_MANAGER.fullmatch(part), parts)
        yield from filter(_USERS_MANAGER.fullmatch, parts)


def _units(origin: Origin) -> list[str]:
    return [part for part in _trustworthy_parts(origin) if part.endswith((".slice", ".service", ".scope"))]


def _find(match: Callable[[str], re.Match[str] | None], texts: Iterable[str]) -> list[str]:
    return [result[1] for result in map(match, texts) if result is not None]


_READERS: Final[dict[str, Callable[[Origin], Sequence[str]]]] = {
    "user": lambda origin: [str(origin.uid)],
    "group": lambda origin: [str(group) for group in origin.groups],
    "cgroup": _cgroups,
    "systemd_unit": _units,
    "slurm_job": lambda origin: _find(_SLURM_JOB.match, _cgroups(origin)),
    "kubernetes_pod": lambda origin: [
        pod.replace("_", "-") for pod in _find(_POD.fullmatch, _trustworthy_parts(origin))
    ],
    "container": lambda origin: _find(_CONTAINER.fullmatch, _trustworthy_parts(origin)),
    "executable": _executables,
}
KINDS: Final = (*_READERS, "namespace")


def is_below(path: str, value: str) -> bool:
    """Return whether a path fits a pattern, part by part, or lies below one that does."""
    parts, pattern = path.strip("/").split("/"), value.strip("/").split("/")
    return pattern == [""] or (len(parts) >= len(pattern) and all(map(fnmatchcase, parts, pattern)))


def expand_cgroups(cgroups: Sequence[str]) -> list[str]:
    """Return the paths of cgroups and of all cgroups that contain them, each once, outermost first."""
    paths = {"/": None} if cgroups else {}
    for path in cgroups:
        parts = path.strip("/").split("/")
        paths |= {f"/{'/'.join(parts[:count])}": None for count in range(1, len(parts) + 1)}
    return list(paths)


_FITS: Final[dict[str, Callable[[str, str], bool]]] = {
    "user": str.__eq__,
    "group": str.__eq__,
    "cgroup": is_below,
    "container": lambda image, value: value == "*" or image.startswith(value),
    "namespace": lambda namespace, value: fnmatchcase(namespace, value if "/" in value else f"{value}/*"),
}
"""The comparison of a process's property with a value, by kind; other kinds compare by pattern."""
