"""The source of the installed packages, and what each module of it imports."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from attrs import frozen

from pympsd.process.version import EXTRAS

PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")


@frozen
class Module:
    """One module of an installed package."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    def is_in(self, *packages: str) -> bool:
        """Whether it is one of these modules, or lies in one of these packages."""
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)

    def imports(self) -> Iterator[str]:
        """Everything it imports, as full names: ``a.b`` for ``from a import b`` too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def imported_modules(self, names: Collection[str]) -> Iterator[str]:
        """Those of the named modules that it imports: ``a.b`` itself where that is one of them, else ``a``."""
        for name in self.imports():
            module = name if name in names else name.rpartition(".")[0]
            if module in names and module != self.name:
                yield module

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        parts = package[: len(package) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)

    def imported_roots(self) -> set[str]:
        """The top-level packages it imports."""
        return {name.partition(".")[0] for name in self.imports()}


def _modules() -> tuple[Module, ...]:
    modules = []
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert spec.submodule_search_locations
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(set(root.rglob("*.py")) - set(root.glob(f"{EXTRAS}/**/*"))):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            modules.append(Module(name, path, ast.parse(text), text.count("\n")))
    return tuple(modules)


@pytest.fixture(scope="session")
def modules() -> tuple[Module, ...]:
    """Every module of the three packages."""
    modules = _modules()
    assert len(modules) > 60
    return modules
