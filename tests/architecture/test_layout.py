"""Size and names of modules and folders, and that what is installed is what is tested."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.architecture.conftest import Module

LINES = 601
MODULES = 25
"""The most that a folder may hold, beside its ``__init__``."""
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "core", "base", "misc"})


def test_no_module_is_long(modules: tuple[Module, ...]) -> None:
    assert {module.name: module.lines for module in modules if module.lines >= LINES} == {}


def test_no_folder_holds_many_modules(modules: tuple[Module, ...]) -> None:
    held = Counter(module.path.parent for module in modules if module.path.name != "__init__.py")
    assert {str(folder): count for folder, count in held.items() if count > MODULES} == {}


def test_no_module_name_is_vague(modules: tuple[Module, ...]) -> None:
    vague = {module.name for module in modules for part in module.name.split(".") if part.strip("_") in VAGUE}
    assert vague == set()


def test_every_module_says_what_it_is_for(modules: tuple[Module, ...]) -> None:
    # A stub that is compiled at every start, and empty package files, say nothing.
    silent = {module.name for module in modules if module.lines and not ast.get_docstring(module.tree)}
    assert silent <= {"pympsd.__main__", "pympsd_server.__main__"}


def test_packages_are_typed(modules: tuple[Module, ...]) -> None:
    roots = {module.path.parent for module in modules if module.name in ("pympsd", "pympsd_server", "pympsd_client")}
    assert roots
    assert all((root / "py.typed").exists() for root in roots)
