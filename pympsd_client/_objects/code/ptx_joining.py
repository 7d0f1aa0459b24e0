"""Several PTX texts as one, in which each text's references to the others' symbols are resolved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve, frozen

_TOKEN: Final = re.compile(r'(?s)//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|[{};]|[^{};"/]+|/')
_HEADER: Final = re.compile(r"\.(version|target|address_size)\b\s*([^\n]*)")
_FILE: Final = re.compile(r'(?m)^\s*\.file\s+\d+\s+"(?:[^"\\\n]|\\.)*"[^\n;{]*$')
_FUNCTION: Final = re.compile(r"\.(?:entry|func)\b\s*(?:\.noreturn\b\s*)?(?:\([^)]*\)\s*)?([\w$%]+)")
_VARIABLE: Final = re.compile(r"\.(?:global|const|shared|tex)\b[^=;{]*?([\w$%]+)\s*(?:\[[^]]*\]\s*)*(?:=|;|$)")
_LINKAGE: Final = re.compile(r"\.(visible|extern|weak|common)\b")


class Unresolved(Exception):
    """A symbol is defined twice; the message names it."""


@frozen
class _Statement:
    """A directive at the top of a text: a function or a variable with its name, or another without."""

    text: str
    name: str = ""
    linkage: str = ""
    is_definition: bool = True


def is_ptx(image: bytes) -> bool:
    """Return whether an image is PTX text."""
    text = image.rstrip(b"\0")
    return b"\0" not in text and b".version" in text and b".target" in text


def join(texts: Sequence[bytes]) -> bytes:
    """Return one PTX text; `Unresolved` if two define the same symbol. One alone is returned as it is.

    The text has the highest version and target of all. Declarations of what another text defines are left out, as are
    repeated weak definitions; symbols that only their own text sees are renamed where another has the same name.
    """
    if len(texts) == 1:
        return texts[0]
    plain = [text.rstrip(b"\0").decode("utf-8", "surrogateescape") for text in texts]
    parts = [list(_statements(_FILE.sub("", _without_header(text)))) for text in plain]
    parts = _renamed(parts)
    defined: set[str] = {one.name for part in parts for one in part if one.name and one.is_definition}
    written: dict[str, str] = {}
    lines = [_header(plain)]
    # Declarations of what no text defines, or of a function before its use, come first.
    for one in (one for part in parts for one in part):
        if one.name and not one.is_definition and one.linkage == "extern":
            if one.name not in defined and one.name not in written:
                written[one.name] = "extern"
                lines.append(one.text)
            continue
        if one.name and one.is_definition:
            before = written.get(one.name)
            if before is not None and "weak" in (before, one.linkage):
                continue
            if before is not None and before != "common":
                raise Unresolved(f"{one.name} is defined twice")
            if before == "common":
                continue
            written[one.name] = one.linkage
        lines.append(one.text)
    return "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"


def _header(texts: Sequence[str]) -> str:
    found: dict[str, list[str]] = {"version": [], "target": [], "address_size": []}
    for text in texts:
        for match in _HEADER.finditer(text):
            found[match[1]].append(match[2].split("//")[0].strip())
    version = max(found["version"], key=lambda one: tuple(int(part) for part in one.split(".")), default="8.0")
    target = max(found["target"], key=lambda one: int("".join(filter(str.isdigit, one.split(",")[0])) or 0))
    size = (found["address_size"] or ["64"])[0]
    return f".version {version}\n.target {target}\n.address_size {size}"


def _without_header(text: str) -> str:
    return _HEADER.sub("", text)


def _statements(text: str) -> Iterator[_Statement]:
    depth, pieces, plain = 0, [], []
    for match in _TOKEN.finditer(text):
        token = match.group()
        pieces.append(token)
        if token.startswith(("//", "/*", '"')):
            continue
        if depth == 0:
            plain.append(token)
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
        head = "".join(plain)
        is_body = token == "}" and depth == 0 and ("=" not in head or _FUNCTION.search(head) is not None)
        if (token == ";" and depth == 0) or is_body:
            yield _statement("".join(pieces).strip(), head.rstrip("{;"), has_body=is_body)
            pieces, plain = [], []


def _statement(text: str, head: str, has_body: bool) -> _Statement:
    linkage = _LINKAGE.search(head)
    kind = linkage[1] if linkage else ""
    function = _FUNCTION.search(head)
    if function is not None:
        return _Statement(text, function[1], kind, has_body)
    variable = None if has_body else _VARIABLE.search(head)
    if variable is not None:
        return _Statement(text, variable[1], kind, kind != "extern")
    return _Statement(text)


def _renamed(parts: list[list[_Statement]]) -> list[list[_Statement]]:
    """Return the parts with other names for symbols that only their part sees and whose name another part has."""
    holders = Counter(name for part in parts for name in {one.name for one in part if one.name})
    result = []
    for number, part in enumerate(parts):
        own = {one.name: f"{one.name}__{number}" for one in part if not one.linkage and holders[one.name] > 1}
        result.append([_with_names(one, own) for one in part] if own else part)
    return result


def _with_names(statement: _Statement, names: dict[str, str]) -> _Statement:
    pattern = rf"(?<![\w$%])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w$%])"
    text = re.sub(pattern, lambda match: names[match.group()], statement.text)
    return evolve(statement, text=text, name=names.get(statement.name, statement.name))
