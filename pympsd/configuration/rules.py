"""Read and write the conditions of ``[[rules]]``."""

import grp
import pwd
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pympsd.configuration.tables import number_text
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.rules import Condition, Rule
from pympsd.vocabulary.texts import BadText

_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_PATTERNS: Final = {
    # The parts of a cgroup's path must not be empty, "." or "..".
    "cgroup": (
        re.compile(r"/|(/(?!\.{1,2}(/|\Z))[^/]+)+/?"),
        "a path from the root of the cgroups, such as /user.slice,",
    ),
    "systemd_unit": (
        re.compile(r".*(\.(slice|service|scope)|\*)"),
        "the name of a slice, a service or a scope, such as batch.slice,",
    ),
    "slurm_job": (re.compile(r"[0-9]+|\*", re.ASCII), "the number of a job, or *,"),
    "kubernetes_pod": (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|\*", re.ASCII),
        "the UID of a pod, as kubectl get pod -o jsonpath={.metadata.uid} prints it, or *,",
    ),
    "container": (
        re.compile(r"[0-9a-f]{12,64}|\*", re.ASCII),
        "the first 12 to 64 digits of a container's ID, or *,",
    ),
    "executable": (re.compile(r"[/*].*", re.DOTALL), "the full path of a program, such as /usr/bin/python3*,"),
    "namespace": (re.compile(r"[a-z0-9_*]+(/[a-z0-9_*]+)?", re.ASCII), "server/namespace, or a server,"),
}
"""The form of a value and the complaint about any other form, by kind of condition."""


def read_condition(kind: str, raw: Any) -> Condition:
    """Return the condition that a value or a list of values states; raise BadText."""
    values = raw if isinstance(raw, list) else [raw]
    if not values or any(isinstance(value, bool) or not isinstance(value, str | int) for value in values):
        raise BadText("a text or a number, or a list of one or more of them,", "")
    texts = (value if isinstance(value, str) else number_text(value) for value in values)
    return Condition(kind, tuple(dict.fromkeys(_value(kind, text) for text in texts)))


def _value(kind: str, text: str) -> str:
    if kind == "user":
        return _number(text, "a user's", lambda name: pwd.getpwnam(name).pw_uid)
    if kind == "group":
        return _number(text, "a group's", lambda name: grp.getgrnam(name).gr_gid)
    pattern, allowed = _PATTERNS[kind]
    if not pattern.fullmatch(text):
        raise BadText(allowed, text)
    return text


def _number(text: str, owner: str, by_name: Callable[[str], int]) -> str:
    if _ID.fullmatch(text) and int(text) < NO_USER:
        return text
    try:
        return str(by_name(text))
    except (KeyError, ValueError):
        raise BadText(f"{owner} name on this machine, or its number,", text) from None


def render_conditions(rule: Rule) -> Iterator[str]:
    """Yield the lines of a rule, without its limits."""
    if rule.name:
        yield f"name = {quote(rule.name)}"
    for condition in rule.conditions:
        texts = ", ".join(map(quote, condition.values))
        yield f"{condition.kind} = {texts if len(condition.values) == 1 else f'[{texts}]'}"


def quote(text: str) -> str:
    """Return a text as a basic string of TOML."""
    escaped = "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08x}" for char in text
    )
    return f'"{escaped}"'


def count(rules: Sequence[Rule] | None) -> str:
    """Return the number of rules in words."""
    number = len(rules or ())
    return "1 rule" if number == 1 else f"{number or 'no'} rules"
