"""Who may import what (DESIGN, 3): read from the source of the installed packages."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.architecture.conftest import Module

PURE = (
    "pympsd.vocabulary",
    "pympsd.wire",
    "pympsd.devices",
    "pympsd.commands",
    "pympsd.state_machine",
    "pympsd.journal.catalogue",
    "pympsd.journal.dialects",
    "pympsd.journal.line_format",
    "pympsd_server.state_machine",
    "pympsd.version",
)
IMPURE = frozenset(
    (
        *("trio", "asyncio", "socket", "_socket", "select", "selectors", "subprocess", "signal", "threading"),
        *("multiprocessing", "time", "os", "fcntl", "resource", "ctypes", "shutil", "tempfile", "random", "secrets"),
        *("structlog", "logging"),
    )
)
TOUCHES_THE_WORLD = frozenset(
    {
        "pympsd.devices.__main__",
        "pympsd.devices.driver_probe",
        "pympsd.devices.state_folder",
        "pympsd.devices.registrations",
    }
)
"""Modules of a pure room that are not: a program that prints, and what a machine remembers in files."""
SMI_MAY = ("pympsd.smi", "pympsd.devices", "pympsd.vocabulary", "pympsd.version")
SERVER_MAY = tuple(
    f"pympsd.{room}"
    for room in ("vocabulary", "wire", "journal", "devices", "channel", "version", "build", "process_title")
)
CLIENT_MAY = ("pympsd.vocabulary", "pympsd.wire", "pympsd.channel", "pympsd.version", "pympsd.build")
ENUMS_MAY = ("pympsd.vocabulary", "pympsd_client", "pympsd_server.backends.cuda")


def _under(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def _of(modules: tuple[Module, ...], *rooms: str) -> list[Module]:
    found = [module for module in modules if module.is_in(*rooms)]
    assert found, rooms
    return found


def _breaches(modules: list[Module], package: str, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{module.name} imports {name}"
        for module in modules
        for name in module.imports()
        if _under(name, (package,)) and not _under(name, allowed)
    ]


def test_the_daemon_imports_neither_server_nor_client(modules: tuple[Module, ...]) -> None:
    daemon = _of(modules, "pympsd")
    assert _breaches(daemon, "pympsd_server", ()) == []
    assert _breaches(daemon, "pympsd_client", ()) == []


def test_the_server_imports_only_the_shared_rooms(modules: tuple[Module, ...]) -> None:
    server = _of(modules, "pympsd_server")
    assert _breaches(server, "pympsd", SERVER_MAY) == []
    assert _breaches(server, "pympsd_client", ()) == []


def test_the_client_imports_only_vocabulary_wire_and_channel(modules: tuple[Module, ...]) -> None:
    client = _of(modules, "pympsd_client")
    assert _breaches(client, "pympsd", CLIENT_MAY) == []
    assert _breaches(client, "pympsd_server", ()) == []


def test_pure_rooms_touch_nothing(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in TOUCHES_THE_WORLD]
    breaches = [f"{module.name} imports {name}" for module in pure for name in module.imported_roots() & IMPURE]
    assert breaches == []


def test_pure_rooms_import_only_pure_rooms(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in TOUCHES_THE_WORLD]
    assert _breaches(pure, "pympsd", PURE) == []
    assert _breaches(pure, "pympsd_server", ("pympsd_server.state_machine",)) == []


def test_the_state_machine_does_not_know_the_commands(modules: tuple[Module, ...]) -> None:
    may = ("pympsd.state_machine", "pympsd.devices", "pympsd.vocabulary")
    assert _breaches(_of(modules, "pympsd.state_machine"), "pympsd", may) == []


def test_what_is_pure_uses_nothing_that_touches_the_world(modules: tuple[Module, ...]) -> None:
    pure = [module for module in _of(modules, *PURE) if module.name not in TOUCHES_THE_WORLD]
    worldly = tuple(TOUCHES_THE_WORLD)
    breaches = [
        f"{module.name} imports {name}" for module in pure for name in module.imports() if _under(name, worldly)
    ]
    assert breaches == []


def test_the_command_that_shows_devices_needs_no_daemon(modules: tuple[Module, ...]) -> None:
    assert _breaches(_of(modules, "pympsd.smi"), "pympsd", SMI_MAY) == []
    importers = {m.name for m in modules for name in m.imports() if _under(name, ("pympsd.smi",))}
    assert {name for name in importers if not _under(name, ("pympsd.smi",))} == set()


def test_pure_rooms_open_and_print_nothing(modules: tuple[Module, ...]) -> None:
    reads_files = {"pympsd.devices.machine": {"read_text"}}  # a machine description may be a file
    called = [
        (module.name, name)
        for module in _of(modules, *PURE)
        if module.name not in TOUCHES_THE_WORLD
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and (name := _called(node)) in ("open", "print", "input", "read_text")
    ]
    assert [(module, name) for module, name in called if name not in reads_files.get(module, ())] == []


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def test_a_minds_fields_are_given_the_time_never_taken(modules: tuple[Module, ...]) -> None:
    for module in _of(modules, "pympsd.state_machine", "pympsd_server.state_machine"):
        assert "datetime" not in module.imported_roots(), module.name


def test_cuda_bindings_are_imported_only_where_design_says(modules: tuple[Module, ...]) -> None:
    breaches = [
        f"{module.name} imports {name}"
        for module in modules
        for name in module.imports()
        if _under(name, ("cuda",)) and not module.is_in(*ENUMS_MAY)
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


@pytest.mark.parametrize("backend", ["emulated", "cuda"])
def test_only_the_selection_imports_a_backend(modules: tuple[Module, ...], backend: str) -> None:
    room = f"pympsd_server.backends.{backend}"
    importers = {
        module.name
        for module in modules
        if not module.is_in(room) and any(_under(name, (room,)) for name in module.imports())
    }
    assert importers <= {"pympsd_server.backends.selection"}


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


def test_executors_and_backends_know_neither_trio_nor_structlog(modules: tuple[Module, ...]) -> None:
    rooms = ("pympsd_server.executor", "pympsd_server.backends")
    importers = [m.name for m in modules if m.is_in(*rooms) and m.imported_roots() & {"trio", "structlog"}]
    assert importers == []


def test_the_client_knows_neither_trio_nor_structlog(modules: tuple[Module, ...]) -> None:
    importers = [m.name for m in _of(modules, "pympsd_client") if m.imported_roots() & {"trio", "structlog"}]
    assert importers == []


def test_the_rule_book_would_notice(modules: tuple[Module, ...]) -> None:
    by_name = {module.name: module for module in modules}
    assert "pympsd.wire.frames" in set(by_name["pympsd.control_client"].imports())
    assert "trio" in by_name["pympsd.service.run"].imported_roots()
    assert _breaches([by_name["pympsd.service.run"]], "pympsd", ("pympsd.vocabulary",)) != []
