"""Read and write the limits in ``[[cgroups]]``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pympsd.configuration.positions import Path
from pympsd.configuration.rules import quote
from pympsd.configuration.tables import Tables, join_path
from pympsd.state_machine.cgroups import MAX_CGROUPS, cgroup_path
from pympsd.state_machine.named_servers import NotPossible
from pympsd.vocabulary.limit_table import PINNED_MEMORY
from pympsd.vocabulary.limits import CgroupLimit, CgroupLimits, PinnedMemory
from pympsd.vocabulary.texts import memory_text

_LIMITS: Final = ("hard_limit", "soft_limit")
_KEYS: Final = ("path", *_LIMITS)


def read_cgroups(tables: Tables, raw: Any) -> CgroupLimits:
    """Return the limits of cgroups that a file states."""
    limits_by_path: CgroupLimits = {}
    for which, table in enumerate(tables.tables(("cgroups",), raw)):
        place = ("cgroups", which)
        tables.check_keys(place, table, _KEYS, "a cgroup")
        path = _path(tables, (*place, "path"), table.get("path"))
        if path in limits_by_path:
            tables.wrong((*place, "path"), f"{join_path((*place, 'path'))} names {path} a second time")
        limits_by_path[path] = _limits(tables, place, table)
    if len(limits_by_path) > MAX_CGROUPS:
        tables.wrong(("cgroups",), f"cgroups: {MAX_CGROUPS} can have limits,", len(limits_by_path))
    return limits_by_path


def _path(tables: Tables, place: Path, raw: Any) -> str:
    if isinstance(raw, str):
        try:
            return cgroup_path(raw)
        except NotPossible:
            pass
    allowed = f"{join_path(place)} must be the full path of a cgroup, such as /batch"
    tables.wrong(place, allowed if raw is None else f"{allowed},", raw)
    return ""


def _limits(tables: Tables, place: Path, table: Mapping[str, Any]) -> dict[int, CgroupLimit]:
    """Return the limits in one ``[[cgroups]]`` table by device ordinal; wrong limits are noted and left out."""
    problem_count = len(tables.problems)
    hard, soft = (
        tables.key_by_index(
            (*place, key), PINNED_MEMORY, tables.value(place, table, key, PINNED_MEMORY.read, (str,)) or {}
        )
        for key in _LIMITS
    )
    above = [ordinal for ordinal in sorted(hard.keys() & soft.keys()) if soft[ordinal] > hard[ordinal]]
    if above:
        where, ordinal = (*place, "soft_limit"), above[0]
        tables.wrong(
            where, f"{join_path(where)} must be at most the hard limit, {hard[ordinal]},", str(soft[ordinal])
        )
    if not hard and not soft and len(tables.problems) == problem_count:  # wrong limits have their own errors
        tables.wrong(place, f"{join_path(place)} has a hard_limit or a soft_limit")
    return {ordinal: CgroupLimit(hard.get(ordinal), soft.get(ordinal)) for ordinal in sorted({*hard, *soft})}


def render_cgroups(cgroups: CgroupLimits, devices: int) -> Iterator[str]:
    """Yield a file's lines for limits of cgroups; ``devices``: the machine's number of devices."""
    for path, limits in sorted(cgroups.items()):
        yield from ("", "[[cgroups]]", f"path = {quote(path)}")
        for key, kind in zip(
            _LIMITS,
            ({at: limit.hard for at, limit in limits.items()}, {at: limit.soft for at, limit in limits.items()}),
            strict=True,
        ):
            if text := _text({at: limit for at, limit in kind.items() if limit is not None}, devices):
                yield f'{key} = "{text}"'


def _text(limits: Mapping[int, PinnedMemory], devices: int) -> str:
    if len(limits) == devices and len(set(limits.values())) == 1:
        return memory_text(next(iter(limits.values())))
    return ",".join(f"{ordinal}={memory_text(limit)}" for ordinal, limit in sorted(limits.items()))


def count(cgroups: CgroupLimits) -> str:
    """Return how many cgroups have limits, in words."""
    number = len(cgroups)
    return "1 cgroup" if number == 1 else f"{number or 'no'} cgroups"
