"""Which module may import which: read from the source of the installed packages."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.architecture.conftest import Module

ROOT = Path(__file__).parents[2]
PURE = (
    "pympsd.vocabulary",
    "pympsd.wire",
    "pympsd.devices",
    "pympsd.commands",
    "pympsd.configuration",
    "pympsd.state_machine",
    "pympsd.takeover.state",
    "pympsd.journal.catalogue",
    "pympsd.journal.line_format",
    "pympsd.journal.recognition",
    "pympsd_server.state_machine",
    "pympsd.process.version",
    "pympsd.errors",
)
IMPURE = frozenset(
    (
        *("trio", "asyncio", "socket", "_socket", "select", "selectors", "subprocess", "signal", "threading"),
        *("multiprocessing", "time", "os", "fcntl", "resource", "ctypes", "shutil", "tempfile", "random", "secrets"),
        *("structlog", "logging"),
    )
)
WITH_EFFECTS = frozenset(
    {
        "pympsd.devices.__main__",
        "pympsd.devices.driver_probe",
        "pympsd.devices.state_folder",
        "pympsd.devices.registrations",
    }
)
"""Modules of a pure package that are not pure: a program that prints, and files that keep a machine's state."""
LEAF_MODULES = ("pympsd.errors", "pympsd.process.version")
SMI_MAY = ("pympsd.smi", "pympsd.devices", "pympsd.vocabulary", "pympsd.errors", "pympsd.process.version")
SERVER_MAY = tuple(
    f"pympsd.{package}" for package in ("vocabulary", "wire", "journal", "devices", "channel", "errors", "process")
)
CLIENT_MAY = ("pympsd.vocabulary", "pympsd.wire", "pympsd.channel", "pympsd.errors", "pympsd.process.version")
ENUMS_MAY = ("pympsd.vocabulary", "pympsd_client", "pympsd_server.backends.cuda")


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _of(modules: tuple[Module, ...], *packages: str) -> list[Module]:
    selected = [module for module in modules if module.is_in(*packages)]
    assert selected, packages
    return selected


def _breaches(modules: list[Module], package: str, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{module.name} imports {name}"
        for module in modules
        for name in module.imports()
        if _is_in(name, (package,)) and not _is_in(name, allowed)
    ]


def test_the_daemon_imports_neither_server_nor_client(modules: tuple[Module, ...]) -> None:
    daemon = _of(modules, "pympsd")
    assert _breaches(daemon, "pympsd_server", ()) == []
    assert _breaches(daemon, "pympsd_client", ()) == []


def test_the_server_imports_only_the_shared_packages(modules: tuple[Module, ...]) -> None:
    server = _of(modules, "pympsd_server")
    assert _breaches(server, "pympsd", SERVER_MAY) == []
    assert _breaches(server, "pympsd_client", ()) == []


def test_the_client_imports_only_vocabulary_wire_and_channel(modules: tuple[Module, ...]) -> None:
    client = _of(modules, "pympsd_client")
    # The fixtures start daemons; programs never import them.
    fixtures = _of(modules, "pympsd_client.pytest_plugin")
    assert (
        _breaches(
            [client_process for client_process in client if client_process not in fixtures], "pympsd", CLIENT_MAY
        )
        == []
    )
    assert _breaches(fixtures, "pympsd", (*CLIENT_MAY, "pympsd.control")) == []
    assert _breaches(client, "pympsd_server", ()) == []


def test_pure_packages_import_nothing_with_effects(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in WITH_EFFECTS]
    breaches = [f"{module.name} imports {name}" for module in pure for name in module.imported_roots() & IMPURE]
    assert breaches == []


def test_pure_packages_import_only_pure_packages(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in WITH_EFFECTS]
    assert _breaches(pure, "pympsd", PURE) == []
    assert _breaches(pure, "pympsd_server", ("pympsd_server.state_machine",)) == []


def test_the_state_machine_does_not_import_the_commands(modules: tuple[Module, ...]) -> None:
    may = ("pympsd.state_machine", "pympsd.takeover.state", "pympsd.devices", "pympsd.vocabulary", *LEAF_MODULES)
    assert _breaches(_of(modules, "pympsd.state_machine"), "pympsd", may) == []


def test_pure_modules_import_no_module_with_effects(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in WITH_EFFECTS]
    effects = tuple(WITH_EFFECTS)
    breaches = [
        f"{module.name} imports {name}" for module in pure for name in module.imports() if _is_in(name, effects)
    ]
    assert breaches == []


def test_the_command_that_shows_devices_needs_no_daemon(modules: tuple[Module, ...]) -> None:
    asks_daemon = {
        "pympsd.smi.memory_limits": ("pympsd.control",),
        "pympsd.smi.source": ("pympsd.cli.daemon_connection", "pympsd.wire.frames"),
    }
    shows = [module for module in _of(modules, "pympsd.smi") if module.name not in asks_daemon]
    assert _breaches(shows, "pympsd", SMI_MAY) == []
    for name, may in asks_daemon.items():
        assert _breaches(_of(modules, name), "pympsd", (*may, *SMI_MAY)) == []
    importers = {m.name for m in modules for name in m.imports() if _is_in(name, ("pympsd.smi",))}
    assert {name for name in importers if not _is_in(name, ("pympsd.smi",))} == set()


def test_pure_packages_open_and_print_nothing(modules: tuple[Module, ...]) -> None:
    reads_files = {"pympsd.devices.machine": {"read_text"}}  # a machine description may be a file
    reads_files["pympsd.process.version"] = {"read_text"}  # the digests of the sources
    called = [
        (module.name, name)
        for module in _of(modules, *PURE)
        if module.name not in WITH_EFFECTS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and (name := _find_called(node)) in ("open", "print", "input", "read_text")
    ]
    assert [(module, name) for module, name in called if name not in reads_files.get(module, ())] == []


def _find_called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def test_state_machines_are_given_the_time_and_never_read_it(modules: tuple[Module, ...]) -> None:
    for module in _of(modules, "pympsd.state_machine", "pympsd_server.state_machine"):
        assert "datetime" not in module.imported_roots(), module.name


def test_cuda_bindings_are_imported_only_where_allowed(modules: tuple[Module, ...]) -> None:
    breaches = [
        f"{module.name} imports {name}"
        for module in modules
        for name in module.imports()
        if _is_in(name, ("cuda",)) and not module.is_in(*ENUMS_MAY)
    ]
    assert breaches == []


def test_driver_calls_are_made_only_by_the_cuda_backend_and_the_fallback(modules: tuple[Module, ...]) -> None:
    allowed = ("pympsd_server.backends.cuda", "pympsd_client._connect.private_executor")
    breaches = []
    for module in modules:
        if module.is_in(*allowed):
            continue
        names = {
            alias.asname or alias.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cuda")
            for alias in node.names
        }
        # A driver function is named cuSomething; enums and handle types are CUsomething.
        breaches += [f"{module.name} imports {name}" for name in names if name.startswith("cu")]
        breaches += [
            f"{module.name} calls {node.func.value.id}.{node.func.attr}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in names
            and node.func.attr.startswith("cu")
        ]
    assert breaches == []


@pytest.mark.parametrize(
    "packages", [("pympsd_server.backends.emulated", "pympsd_server.ptx"), ("pympsd_server.backends.cuda",)]
)
def test_only_the_selection_imports_a_backend(modules: tuple[Module, ...], packages: tuple[str, ...]) -> None:
    importers = {
        module.name
        for module in modules
        if not module.is_in(*packages) and any(_is_in(name, packages) for name in module.imports())
    }
    assert importers <= {"pympsd_server.executor.main"}


def test_what_executes_ptx_needs_only_the_memory_of_the_device(modules: tuple[Module, ...]) -> None:
    ptx = _of(modules, "pympsd_server.ptx")
    assert len(ptx) > 50
    memory = "pympsd_server.backends.emulated.memory", "pympsd_server.backends.free_ranges"
    assert _breaches(ptx, "pympsd_server.backends", memory) == []


def test_only_the_journal_configures_structlog(modules: tuple[Module, ...]) -> None:
    configuring = {
        module.name
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("configure")
        and isinstance(node.value, ast.Name)
        and node.value.id == "structlog"
    }
    imported = {m.name for m in modules if any(name.startswith("structlog.configure") for name in m.imports())}
    assert configuring | imported == {"pympsd.journal.setup"}


def test_executors_and_backends_import_neither_trio_nor_structlog(modules: tuple[Module, ...]) -> None:
    packages = ("pympsd_server.executor", "pympsd_server.backends", "pympsd_server.ptx")
    importers = [m.name for m in modules if m.is_in(*packages) and m.imported_roots() & {"trio", "structlog"}]
    assert importers == []


def test_the_client_imports_neither_trio_nor_structlog(modules: tuple[Module, ...]) -> None:
    importers = [m.name for m in _of(modules, "pympsd_client") if m.imported_roots() & {"trio", "structlog"}]
    assert importers == []


def test_the_keeper_imports_only_what_is_built_in(modules: tuple[Module, ...]) -> None:
    (keeper,) = [module for module in modules if module.name == "pympsd.takeover.keeper.program"]
    (its_packets,) = [module for module in modules if module.name == "pympsd.takeover.keeper.packets"]
    built_in = {"__future__", "_signal", "_socket", "errno", "fcntl", "os", "resource", "select", "sys", "time"}
    assert keeper.imported_roots() == built_in | {"pympsd"}
    assert {name for name in keeper.imports() if _is_in(name, ("pympsd",))} == {"pympsd.takeover.keeper.packets"}
    assert set(its_packets.imports()) == {"pympsd.errors.ProtocolError"}
    (errors,) = [module for module in modules if module.name == "pympsd.errors"]
    assert errors.imported_roots() == set()


def _rings(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, sorted."""
    reached = {node: _find_reached(node, arrows) for node in arrows}
    in_rings = [node for node in arrows if node in reached[node]]
    rings = {frozenset(other for other in reached[node] if node in reached[other]) for node in in_rings}
    return sorted(map(sorted, rings))


def _find_reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return the nodes that one or more arrows lead to."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        new = arrows[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


def test_no_modules_import_each_other_directly_or_in_a_ring(modules: tuple[Module, ...]) -> None:
    # Imports for type checkers and those inside of functions count too: they hold files together as well.
    arrows = {module.name: set(module.imported_modules({module.name for module in modules})) for module in modules}
    rings = [{name: sorted(arrows[name] & set(ring)) for name in ring} for ring in _rings(arrows)]
    assert rings == []


def test_rings_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"g"}, "g": {"a", "e"}}
    assert _rings(arrows) == [["b", "c"], ["e", "f", "g"]]


def test_nothing_below_the_api_of_the_client_imports_it_or_its_objects(modules: tuple[Module, ...]) -> None:
    below = _of(modules, "pympsd_client._command_stream", "pympsd_client._connect")
    assert _breaches(below, "pympsd_client._api", ()) == []
    assert _breaches(below, "pympsd_client._objects", ()) == []


def test_the_rules_find_what_they_forbid(modules: tuple[Module, ...]) -> None:
    by_name = {module.name: module for module in modules}
    assert "pympsd.wire.frames" in set(by_name["pympsd.cli.daemon_connection"].imports())
    assert "trio" in by_name["pympsd.service.run"].imported_roots()
    assert _breaches([by_name["pympsd.service.run"]], "pympsd", ("pympsd.vocabulary",)) != []


def test_what_tests_and_scripts_import_from_the_product_exists(modules: tuple[Module, ...]) -> None:
    """Some of these files are not imported where there is no GPU or no cluster, so no other test would notice."""
    defined = {module.name: _find_defined(module.tree) for module in modules}
    texts = [path.read_text() for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")]
    imported = {
        (node.module, alias.name)
        for node in (node for text in texts for node in ast.walk(ast.parse(text)))
        if isinstance(node, ast.ImportFrom) and node.module in defined
        for alias in node.names
    }
    assert len(imported) > 1000
    missing = [
        f"{module}.{name}"
        for module, name in imported
        if not {name, "__getattr__"} & defined[module]
        and f"{module}.{name}" not in defined
        and not _is_extension(f"{module}.{name}")
    ]
    assert missing == []


def _is_extension(name: str) -> bool:
    """Whether a name is a module that is written in C."""
    package, _, module = name.rpartition(".")
    found = find_spec(package)
    folders = found.submodule_search_locations if found is not None else None
    return any(list(Path(folder).glob(f"{module}.*so")) for folder in folders or ())


def _find_defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports; those that only its functions use are among them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return names
