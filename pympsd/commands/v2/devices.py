"""device_query: the devices of the daemon and of each server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd.commands.arguments import A_PID, MAYBE_A_PID, flag, read_optional_pid
from pympsd.commands.registry import Caller, Decision, command
from pympsd.commands.v2.records import device_record
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, lines, refusal
from pympsd.vocabulary.device_facts import DeviceFacts

HEADING: Final = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
TABLE_ROW: Final = "{:<16}{:<15}{:<42}{:<34}{}"


def _first_number(words: Sequence[str]) -> int | Answer | None:
    return read_optional_pid([word for word in words if word != "--csv"])


@command("device_query", takes=rf"{MAYBE_A_PID}( ?--csv)?|--csv {A_PID}", pid=_first_number, csv=flag("--csv"))
def device_query(daemon: Daemon, caller: Caller, pid: int | None, csv: bool) -> Decision:
    """Show the devices of the daemon and of its servers, or of the server PID; --csv as comma-separated values."""
    if pid is not None and daemon.server_by_pid(pid) is None:
        return Decision(refusal(f"Server {pid} not found"))
    shown = ["Default", *_rows(daemon.devices, csv)]
    servers = [server for server in daemon.running_servers() if pid in (None, server.pid)]
    for server in servers:
        # Recorded: the heading of a server begins with a newline.
        shown += [f"\nServer {server.pid}", *_rows([daemon.devices[n] for n in daemon.ordinals_of(server)], csv)]
    devices = [device_record(daemon, ordinal) for ordinal in range(len(daemon.devices))]
    return Decision(lines(*shown), data={"devices": devices, "servers": [server.pid for server in servers]})


def _rows(devices: Sequence[DeviceFacts], csv: bool) -> list[str]:
    rows = [HEADING, *((n, device.pci, device.uuid, device.name, "N/A") for n, device in enumerate(devices))]
    return [",".join(map(str, row)) if csv else TABLE_ROW.format(*row) for row in rows]
