"""Read tables and values of a TOML file, and note the errors in it."""

from collections.abc import Callable, Iterable, Mapping
from json import dumps
from typing import Any, Final

from attrs import frozen

from pympsd.configuration.plan import FileContext
from pympsd.configuration.positions import Path
from pympsd.devices.visible import find_device, list_devices
from pympsd.vocabulary.limit_table import LimitRow, Limits
from pympsd.vocabulary.limits import ALL_DEVICES
from pympsd.vocabulary.mistyped import find_similar
from pympsd.vocabulary.texts import BadText

_MAX_BITS: Final = 64
"""The number of bits of a whole number in TOML."""


@frozen
class Tables:
    """A file that is being read. Methods add errors to ``problems`` and continue."""

    context: FileContext
    problems: list[tuple[Path, str]]
    warnings: list[tuple[Path, str]]

    def value(
        self,
        path: Path,
        raw: Mapping[str, Any],
        key: str,
        read: Callable[[str], Any],
        types: tuple[type, ...],
    ) -> Any:
        """Return the value at a key, as ``read`` converts it; None if the key is absent or the value is wrong.

        Args:
            path: The table's place in the file, for errors.
            raw: The table.
            key: The key in the table.
            read: Converts a text, or a number as text; raises BadText for one that is not allowed.
            types: The allowed types: str, int, float. A boolean is always wrong.
        """
        if key not in raw:
            return None
        value = raw[key]
        if isinstance(value, bool) or not isinstance(value, types):
            names = " or ".join({str: "text", int: "a whole number", float: "a number"}[type_] for type_ in types)
            self.wrong((*path, key), f"{join_path((*path, key))} must be {names},", value)
            return None
        try:
            return read(value if isinstance(value, str) else number_text(value))
        except BadText as error:
            self.wrong((*path, key), f"{join_path((*path, key))} must be {error.allowed}", value)
            return None

    def table(self, path: Path, raw: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return the table at a key; an empty table if the key is absent or its value is not a table."""
        table = raw.get(key, {})
        if isinstance(table, dict):
            return table
        self.wrong((*path, key), f"{join_path((*path, key))} must be a table,", table)
        return {}

    def tables(self, path: Path, raw: Any) -> list[dict[str, Any]]:
        """Return the tables of an array; an empty list if the value is not an array of tables."""
        if isinstance(raw, list) and all(isinstance(entry, dict) for entry in raw):
            return raw
        self.wrong(path, f"{join_path(path)} must be tables, each under [[{join_path(path)}]],", raw)
        return []

    def check_keys(self, path: Path, raw: Mapping[str, Any], allowed_keys: tuple[str, ...], owner: str) -> None:
        """Note an error for each unknown key."""
        for key in raw:
            if key not in allowed_keys:
                similar = find_similar(key, allowed_keys)
                hint = f"did you mean {similar}?" if similar else f"the keys are {', '.join(allowed_keys)}"
                self.wrong((*path, key), f"{join_path((*path, key))} is not a key of {owner}; {hint}")

    def check_own_servers(self, path: Path, raw: Mapping[str, Any]) -> None:
        """Note an error if a key is set that needs pympsd's own servers, and the daemon has the driver's."""
        if raw.get(str(path[-1])) and not self.context.has_own_servers:
            self.wrong(path, f"{join_path(path)} is not possible with the driver's own server of this release")

    def wrong(self, path: Path, message: str, value: Any = None) -> None:
        """Note an error. A wrong ``value`` is appended to the sentence as "not VALUE"."""
        self.problems.append((path, message if value is None else f"{message} not {_render(value)}"))

    def device(self, path: Path, word: str, allowed: tuple[int, ...] | None = None) -> int:
        """Return the daemon's ordinal of a device; -1, with an error, if no device has this name.

        ``word`` names the device as clients of a server with the devices ``allowed`` (None means all) do.
        """
        every = self.context.devices
        ordinals = range(len(every)) if allowed is None else allowed
        devices = [every[ordinal] for ordinal in ordinals]
        index = find_device(devices, word)
        if index is None:
            place = "" if allowed is None else " of this server"
            self.wrong(
                path, f"{join_path(path)}: no device '{word}'{place}; devices: {list_devices(devices) or 'none'}"
            )
        return -1 if index is None else ordinals[index]

    def limits(
        self,
        path: Path,
        raw: Mapping[str, Any],
        rows: Iterable[LimitRow],
        allowed: tuple[int, ...] | None = None,
        prefix: str = "",
    ) -> Limits:
        """Return the limits that a table states; ``prefix``: the beginning of the limits' keys; ``allowed``: as in
        `device`.
        """
        values: dict[str, Any] = {}
        for row in rows:
            key = f"{prefix}{row.key}"
            place, value = (*path, key), self.value(path, raw, key, row.read, row.types)
            if value is None:
                continue
            if not self.context.has_own_servers and (lack := row.driver_lacks(value)):
                self.wrong(place, f"{join_path(place)} is not possible with the driver's own server{lack}")
            values[row.field] = self.key_by_index(place, row, value, allowed) if row.is_by_device else value
        return Limits(**values)

    def key_by_index(
        self, path: Path, row: LimitRow, value: Mapping[str, Any], allowed: tuple[int, ...] | None = None
    ) -> dict[int, Any]:
        """Return the entries of a limit by device ordinal; ``value`` has them by names as in `device`."""
        entries = {self.device(path, word, allowed) if word else ALL_DEVICES: entry for word, entry in value.items()}
        return row.apply_change(None, entries, range(len(self.context.devices)))


def number_text(value: Any) -> str:
    """Return a number as text; an empty text, which no key allows, for nan and for numbers above 64 bits."""
    if isinstance(value, int):
        # Python refuses to write numbers with thousands of digits; valid numbers are shorter.
        return str(value) if value.bit_length() <= _MAX_BITS else ""
    return f"{value:g}" if value == value else ""


def join_path(path: Path) -> str:
    """Return the name of a place in a file, such as ``servers.a.uid``."""
    return ".".join(map(str, path))


def _render(value: Any) -> str:
    """Return a short value as TOML writes it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and any(isinstance(element, dict | list) for element in value):
        return "a list of lists or tables"
    try:
        return dumps(value, ensure_ascii=False, default=str)[:100]
    except ValueError:  # Python's error for a number with thousands of digits
        return "a number of thousands of digits"
