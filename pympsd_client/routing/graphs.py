"""Functions of graphs whose parameters rows do not say for C: numbers given and returned, arrays of pympsd itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint64, memmove
from typing import Any, Final

from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.graph_structs import Elements
from pympsd_client._graphs import capture_functions, executable_functions, structure
from pympsd_client._objects.process import process

Resolved = tuple[Callable[..., Any], str]


def _listing(core: Callable[[int, int], tuple[Any, ...]], arrays: int) -> Callable[[], Resolved]:
    """Return what resolves a function of a handle, places for arrays, and a place for their size."""

    def listed(handle: int, *places: int) -> None:
        process.require()
        *lists, size = places
        if not size:
            raise invalid_value("the place for the number is NULL")
        room = c_uint64.from_address(size)
        values = core(handle, room.value if any(lists) else 0)
        for place, found in zip(lists, values, strict=False):
            _write_all(place, found)
        room.value = values[-1]

    return lambda: (listed, "Q" * (arrays + 2))


def _write_all(place: int, values: Sequence[int]) -> None:
    if place and values:
        memmove(place, (c_uint64 * len(values))(*values), 8 * len(values))


def _exchange_mode() -> Resolved:
    def exchange(place: int) -> None:
        process.require()
        if not place:
            raise invalid_value("the place of the mode is NULL")
        mode = c_int.from_address(place)
        mode.value = capture_functions.exchange_mode(mode.value)

    return exchange, "Q"


def _info(core: Callable[[int], tuple[Any, ...]], lists: int) -> Callable[[], Resolved]:
    """Return what resolves cuStreamGetCaptureInfo: every output but the status may be NULL."""

    def info(stream: int, status: int, *places: int) -> None:
        process.require()
        if not status:
            raise invalid_value("the place for the status is NULL")
        c_int.from_address(status).value, *values = core(stream)
        for place, value in zip(places, values, strict=True):
            if place:
                c_uint64.from_address(place).value = value.address if isinstance(value, Elements) else value

    return lambda: (info, "Q" * (lists + 5))


def _update() -> Resolved:
    def update(executable: int, graph: int, place: int) -> None:
        process.require()
        try:
            info = executable_functions.update(executable, graph)
        except CudaError as error:
            for info in error.outputs if place else ():
                memmove(place, info, len(info))
            raise
        if place:
            memmove(place, info, len(info))

    return update, "QQQ"


SPECIAL: Final[dict[str, Callable[[], Resolved]]] = {
    "cuGraphExecUpdate": _update,
    "cuGraphGetEdges": _listing(structure.edges, 3),
    "cuGraphGetNodes": _listing(structure.nodes, 1),
    "cuGraphGetRootNodes": _listing(structure.root_nodes, 1),
    "cuGraphNodeGetDependencies": _listing(structure.dependencies, 2),
    "cuGraphNodeGetDependentNodes": _listing(structure.dependent_nodes, 2),
    "cuStreamGetCaptureInfo": _info(capture_functions.info, 2),
    "cuStreamGetCaptureInfo_v2": _info(capture_functions.info_without_edges, 1),
    "cuThreadExchangeStreamCaptureMode": _exchange_mode,
}
"""What resolves them."""
