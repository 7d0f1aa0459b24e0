"""PTX as text: the limit of registers as a directive (PTX ISA, .maxnreg), and several texts joined as a linker does.

References between the texts are resolved by name (PTX ISA, Linking Directives). Symbols that are local to
one text and have the name of another text's symbol are renamed. Comments, strings and debugging directives are
skipped by the tokenizer, so names inside them have no effect.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import define, frozen

from pympsd.errors import CallError
from pympsd.vocabulary.device_runtime import SET_CONDITIONAL

_SKIPPED: Final = r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"'
_ENTRY: Final = re.compile(rb"(?s)" + _SKIPPED.encode() + rb"|(\.entry\b[^{;]*)([{;])")
_COMMENT: Final = re.compile(rb"(?s)//[^\n]*|/\*.*?\*/")


def limit_registers(image: bytes, registers: int) -> bytes:
    """Return an image whose kernels use at most this many registers per thread, unless the PTX sets its own limit.

    0 means no limit. An image that is not PTX is returned unchanged.
    """
    if registers <= 0 or b".entry" not in image or b"\0" in image.rstrip(b"\0"):
        return image

    def add_limit(match: re.Match[bytes]) -> bytes:
        head, end = match.groups()
        if head is None or end == b";" or b".maxnreg" in _COMMENT.sub(b" ", head):
            return match.group()
        return head + b"\n.maxnreg %d\n" % registers + end

    return _ENTRY.sub(add_limit, image)


_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+ | //[^\n]* | /\*.*?\*/) | (?P<string>"(?:[^"\\\n]|\\.)*") | (?P<directive>\.[A-Za-z_][\w$]*)
      | (?P<word>[A-Za-z_$%][\w$]*) | (?P<other>\d[\w.]* | .)""",
    re.VERBOSE | re.DOTALL,
)
_LINES: Final = frozenset({".version", ".target", ".address_size", ".file", ".loc"})
"""Directives that extend to the end of the line."""
_LINKAGE: Final = frozenset({".visible", ".extern", ".weak", ".common"})
_SHARED_NAMES: Final = frozenset({".weak", ".common"})
_IN_EVERY_PROGRAM: Final = frozenset({"vprintf", "malloc", "free", "__assertfail", SET_CONDITIONAL})
"""Functions that the device provides (CUDA C++ Programming Guide: printf, malloc, assert, graphs)."""
_LOCATION: Final = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*$", re.MULTILINE)
_VERSION: Final = re.compile(r"\.version\s+(\d+)\.(\d+)")
_TARGET: Final = re.compile(r"\.target\s+sm_(\d+)([a-z]?)")
_NAME: Final = re.compile(r"(?<![\w$%.])[A-Za-z_$%][\w$]*")


class LinkError(CallError):
    """The inputs cannot be linked; the text is the linker's message."""


@frozen
class _Token:
    kind: str
    text: str
    start: int
    end: int


@define
class _Item:
    """A definition or declaration in an input; ``name`` may be empty."""

    text: str
    name: str = ""
    linkage: str = ""
    is_function: bool = False
    has_body: bool = False

    @property
    def is_defined(self) -> bool:
        """Whether this is a definition, to which declarations in other inputs may refer."""
        return bool(self.name) and self.linkage != ".extern" and (self.has_body or not self.is_function)

    @property
    def is_local(self) -> bool:
        """Whether this is a definition that other inputs cannot refer to."""
        return self.is_defined and not self.linkage and ".entry" not in self.text


@define
class _Input:
    name: str
    version: tuple[int, int]
    target: tuple[int, str]
    items: list[_Item]

    def rename(self, names: dict[str, str]) -> None:
        """Rename symbols throughout the input: ``names`` has the new names by the old ones."""
        for item in self.items:
            item.text = _NAME.sub(lambda match: names.get(match.group(), match.group()), item.text)
            item.name = names.get(item.name, item.name)


def is_ptx(data: bytes) -> bool:
    """Return whether an input begins with .version, apart from comments, as PTX does."""
    return next((token.text for token in _tokens(data.decode("utf-8", "replace"))), "") == ".version"


def declares_others(data: bytes) -> bool:
    """Return whether a text declares functions or variables that another input must define."""
    return any(item.linkage == ".extern" and not _is_dynamic(item) for item in _parse("", data).items)


def join(inputs: Sequence[tuple[str, bytes]]) -> bytes:
    """Join inputs, given as (name, PTX), into one text; raise LinkError for a symbol that is defined twice.

    An input's local symbols are renamed if another input has a symbol of the same name.
    """
    if len(inputs) == 1:
        return inputs[0][1]
    parsed = [_parse(name, data) for name, data in inputs]
    _rename_locals(parsed)
    definitions = _definitions(parsed)
    version = max((source.version for source in parsed), default=(7, 0))
    target = max((source.target for source in parsed), default=(50, ""))
    lines = [f".version {version[0]}.{version[1]}", f".target sm_{target[0]}{target[1]}", ".address_size 64"]
    emitted: set[str] = set()
    for source in parsed:
        for item in source.items:
            lines += _emit(item, definitions, emitted)
    return "\n".join(lines).encode() + b"\n"


def check_defined(inputs: Sequence[tuple[str, bytes]]) -> None:
    """Raise LinkError for a symbol that an input uses but no input defines."""
    parsed = [_parse(name, data) for name, data in inputs]
    defined = {item.name for source in parsed for item in source.items if item.is_defined}
    for source in parsed:
        for item in source.items:
            missing = item.linkage == ".extern" and item.name not in defined and not _is_dynamic(item)
            if missing and item.name not in _IN_EVERY_PROGRAM and _is_used(item, source):
                raise LinkError(f"error   : Undefined reference to '{item.name}' in '{source.name}'")


def _emit(item: _Item, definitions: dict[str, _Item], emitted: set[str]) -> Iterator[str]:
    definition = definitions.get(item.name)
    if not item.name:
        yield item.text
    elif definition is None:  # only declared, so one declaration is enough, also of a function
        if item.name not in emitted:
            emitted.add(item.name)
            yield item.text
    elif item.name not in emitted:
        if item.is_function and not item.has_body:
            yield item.text.replace(".extern", definition.linkage, 1)
        else:
            emitted.add(item.name)
            yield definition.text


def _definitions(parsed: list[_Input]) -> dict[str, _Item]:
    definitions: dict[str, tuple[_Item, str]] = {}
    for source in parsed:
        for item in source.items:
            if not item.is_defined:
                continue
            previous, first = definitions.get(item.name, (None, ""))
            if previous is None or (previous.linkage in _SHARED_NAMES and item.linkage not in _SHARED_NAMES):
                definitions[item.name] = item, source.name
            elif item.linkage not in _SHARED_NAMES:
                raise LinkError(
                    f"error   : Multiple definition of '{item.name}' in '{source.name}', first defined in '{first}'"
                )
    return {name: item for name, (item, _) in definitions.items()}


def _rename_locals(parsed: list[_Input]) -> None:
    used: set[str] = set()
    for number, source in enumerate(parsed):
        symbols = {item.name for item in source.items if item.name}
        local = {item.name for item in source.items if item.is_local}
        visible = used | {
            item.name
            for other_source in parsed
            if other_source is not source
            for item in other_source.items
            if item.linkage
        }
        source.rename({name: f"{name}$in{number}" for name in local & visible})
        used |= symbols


def _is_used(item: _Item, source: _Input) -> bool:
    word = re.compile(rf"(?<![\w$%.]){re.escape(item.name)}(?![\w$])")
    return any(word.search(user.text) for user in source.items if user is not item)


def _is_dynamic(item: _Item) -> bool:
    """Return whether an item declares dynamic shared memory, which no input defines."""
    return not item.is_function and ".shared" in item.text


def _parse(name: str, data: bytes) -> _Input:
    text = _LOCATION.sub("", data.rstrip(b"\0").decode("utf-8", "replace"))
    version, target = _VERSION.search(text), _TARGET.search(text)
    return _Input(
        name,
        (int(version[1]), int(version[2])) if version else (7, 0),
        (int(target[1]), target[2]) if target else (50, ""),
        list(_items(text)),
    )


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "skip":
            yield _Token(str(match.lastgroup), match.group(), match.start(), match.end())


def _items(text: str) -> Iterator[_Item]:
    """Yield a text's declarations and definitions at the top level, without .section and .pragma."""
    tokens, pending, depth = _tokens(text), list[_Token](), 0
    end_of_line = -1
    for token in tokens:
        if token.start < end_of_line:
            continue
        if not pending and token.text in _LINES:
            end_of_line = (text + "\n").index("\n", token.end)
            continue
        pending.append(token)
        depth += (token.text == "{") - (token.text == "}")
        is_code = any(token.text in (".func", ".entry", ".section") for token in pending[:6])
        if depth == 0 and (token.text == ";" or (token.text == "}" and is_code)):
            if pending[0].text not in (".section", ".pragma"):
                yield _item(text[pending[0].start : token.end], pending)
            pending = []
    if pending:  # the text is incomplete, which the executor reports as an error
        yield _Item(text[pending[0].start :])


def _item(text: str, tokens: list[_Token]) -> _Item:
    linkage = next((token.text for token in tokens[:3] if token.text in _LINKAGE), "")
    is_function = any(token.text in (".func", ".entry") for token in tokens[:4])
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        if token.kind == "word" and depth == 0:
            return _Item(text, token.text, linkage, is_function, is_function and tokens[-1].text == "}")
    return _Item(text)
