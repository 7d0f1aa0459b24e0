"""Find the line of each key and table in a TOML text, for errors in values: tomllib does not report lines.

Only a file with an error is read in this way. The lines are grouped into statements: a header, or a key with its
whole value. Each statement is valid TOML by itself, and tomllib reads it to find its key. Parsers that keep positions
were considered and rejected: tomlkit keeps the layout of a text but does not report the lines of valid keys, and its
errors are worded differently.
"""

import tomllib
from collections.abc import Iterator
from typing import Any, Final

Path = tuple[str | int, ...]
"""The keys from the top of the file to a place; a number is the index of a table in an array."""
MAX_LINES: Final = 200
"""The maximum number of lines of a statement; the end of a longer value is not searched for."""


def positions(text: str) -> dict[Path, int]:
    """Return the line, counted from 1, of each key and table of a valid TOML text."""
    lines_by_path: dict[Path, int] = {}
    table: Path = ()
    tables: dict[Path, int] = {}
    for line, statement in _statements(text):
        if statement.lstrip().startswith("["):
            table = _table_path(
                _find_nested_path(tomllib.loads(statement)), statement.lstrip().startswith("[["), tables
            )
            _note(lines_by_path, table, line)
        else:
            for path in _paths(tomllib.loads(statement)):
                _note(lines_by_path, (*table, *path), line)
    return lines_by_path


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Return the line of a key, or else of the nearest table above it, or else 1."""
    return next((lines[path[:count]] for count in range(len(path), 0, -1) if path[:count] in lines), 1)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement, which is a header or a key with its whole value, and the number of its first line."""
    lines = text.split("\n")
    start = 0
    while start < len(lines):
        end = start + 1
        while not _is_whole("\n".join(lines[start:end])) and end < min(len(lines), start + MAX_LINES):
            end += 1
        statement = "\n".join(lines[start:end])
        if not _is_whole(statement):
            end = start + 1  # a value that is too long: skip its lines one by one
        elif tomllib.loads(statement):
            yield start + 1, statement
        start = end


def _is_whole(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except ValueError:
        return False
    return True


def _find_nested_path(parsed: Any) -> tuple[str, ...]:
    """Return the path of a parsed header, which has one key at each level."""
    path: tuple[str, ...] = ()
    while parsed and isinstance(parsed, dict):
        ((key, parsed),) = parsed.items()
        path = (*path, key)
    return path


def _table_path(names: tuple[str, ...], is_array: bool, tables: dict[Path, int]) -> Path:
    """Return the path of a table, with indices of tables in arrays; ``tables`` has the last index of each array."""
    path: Path = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in tables:
            path = (*path, tables[path])
    path = (*path, *names[-1:])
    if is_array:
        tables[path] = tables.get(path, -1) + 1
        path = (*path, tables[path])
    return path


def _paths(parsed: dict[str, Any]) -> Iterator[Path]:
    for key, value in parsed.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))


def _note(lines: dict[Path, int], path: Path, line: int) -> None:
    """Note the line of a key, and use it for the tables above it that do not have a line yet."""
    for count in range(1, len(path) + 1):
        lines.setdefault(path[:count], line)
