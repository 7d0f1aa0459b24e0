"""Every driver function with a wrong handle: NULL, of another kind of object, and of an object that is destroyed.

tests/data/wrong-arguments-h200.txt has the results of an H200 (driver 580) for one wrong argument at a time. A line
is a function and, for each result, the calls that have it: ``1=NULL`` and ``2=8`` are the value of a parameter,
counted from 0 among C's parameters; ``no-context`` is a call with NULL for all handles while no context is current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts
from pympsd_client.signatures import SIGNATURES, Parameter
from tests.client.conftest import ok

PTX = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry k() { ret; }
"""
WILD = 0xDEAD0000BEEC
"""A number that is neither a handle nor an address on a device."""
NUMBERS = ("CUdevice", "float", "int", "unsigned", "cuuint32_t", "cuuint64_t")
RECORDED = Path(__file__).parents[1] / "data/wrong-arguments-h200.txt"
NO_CONTEXT = "no-context"
EMPTY_BATCH = "cuStreamBatchMemOp"
"""The function that accepts any stream here, because it has no operations to do there."""


def _describe(structure: str, **fields: Any) -> Any:
    description = getattr(cuda, structure)()
    for name, value in fields.items():
        setattr(description, name, value)
    return description


def _array(flags: int = 0) -> Any:
    kind = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
    extent = {"Width": 16, "Height": 16, "Format": kind, "NumChannels": 1, "Flags": flags}
    return _describe("CUDA_ARRAY3D_DESCRIPTOR", **extent)


def _resource(flags: int = 0) -> Any:
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.res.array.hArray = ok(cuda.cuArray3DCreate(_array(flags)))
    return resource


def _on_device(structure: str, kind: str) -> Any:
    description = _describe(structure, **{kind: cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED})
    description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return description


def _graph() -> Any:
    return ok(cuda.cuGraphCreate(0))


def _module() -> Any:
    return ok(cuda.cuModuleLoadData(PTX))


def _library() -> Any:
    return ok(cuda.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))


def _context() -> Any:
    made = ok(cuda.cuCtxCreate(None, 0, 0))
    ok(cuda.cuCtxPopCurrent())
    return made


OF_CONTEXTS: dict[str, Callable[[], Any]] = {
    "CUarray": lambda: ok(cuda.cuArray3DCreate(_array())),
    "CUdeviceptr": lambda: ok(cuda.cuMemAlloc(16 << 20)),
    "CUevent": lambda: ok(cuda.cuEventCreate(0)),
    "CUfunction": lambda: ok(cuda.cuModuleGetFunction(_module(), b"k")),
    "CUgraphExec": lambda: ok(cuda.cuGraphInstantiate(_graph(), 0)),
    "CUmipmappedArray": lambda: ok(cuda.cuMipmappedArrayCreate(_array(), 2)),
    "CUmodule": _module,
    "CUstream": lambda: ok(cuda.cuStreamCreate(1)),
    "CUsurfObject": lambda: ok(cuda.cuSurfObjectCreate(_resource(flags=2))),
    "CUtexObject": lambda: ok(cuda.cuTexObjectCreate(_resource(), cuda.CUDA_TEXTURE_DESC(), None)),
}
"""How objects are made that are destroyed with their context."""
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "CUcontext": (_context, cuda.cuCtxDestroy),
    "CUgraph": (_graph, cuda.cuGraphDestroy),
    "CUgraphNode": (lambda: ok(cuda.cuGraphAddEmptyNode(_graph(), None, 0)), cuda.cuGraphDestroyNode),
    "CUlibrary": (_library, cuda.cuLibraryUnload),
    "CUlinkState": (lambda: ok(cuda.cuLinkCreate(0, [], [])), cuda.cuLinkDestroy),
    "CUmemGenericAllocationHandle": (
        lambda: ok(cuda.cuMemCreate(2 << 20, _on_device("CUmemAllocationProp", "type"), 0)),
        cuda.cuMemRelease,
    ),
    "CUmemoryPool": (
        lambda: ok(cuda.cuMemPoolCreate(_on_device("CUmemPoolProps", "allocType"))),
        cuda.cuMemPoolDestroy,
    ),
}
"""How other objects are made and destroyed."""


def _make_destroyed(kind: str) -> int:
    if kind in OTHERS:
        make, destroy = OTHERS[kind]
        handle = make()
        ok(destroy(handle))
        return int(handle)
    made_in = ok(cuda.cuCtxCreate(None, 0, 0))
    handle = OF_CONTEXTS[kind]()
    ok(cuda.cuCtxDestroy(made_in))
    return int(handle)


def _valid_argument(parameter: Parameter, objects: dict[str, Any]) -> Any:
    """An argument that a function accepts, or at least converts."""
    kind = parameter.type
    if kind in OF_CONTEXTS or kind in OTHERS:
        if kind not in objects:
            objects[kind] = OF_CONTEXTS[kind]() if kind in OF_CONTEXTS else OTHERS[kind][0]()
        return objects[kind]
    if kind == "size_t" or (kind.startswith(NUMBERS) and not kind.endswith("*")):
        return int(kind == "size_t")
    if kind.endswith("*"):
        return b"k" if kind == "char *" else None
    made = getattr(cuda, kind)
    return next(iter(made)) if hasattr(made, "__members__") else made()


@pytest.mark.parametrize("kind", [*OF_CONTEXTS, *OTHERS])
def test_wrong_handles_are_errors(context: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a function that writes a file would write it here
    objects: dict[str, Any] = {}
    accepted = []
    rows = [row for row in SIGNATURES.values() if any(parameter.type == kind for parameter in row.inputs)]
    assert rows
    other = OF_CONTEXTS["CUevent" if kind != "CUevent" else "CUstream"]()
    arguments = [[_valid_argument(parameter, objects) for parameter in row.inputs] for row in rows]
    wrong = {"null": 0, "other": int(other), "wild": WILD, "destroyed": _make_destroyed(kind)}
    for row, valid in zip(rows, arguments, strict=True):
        for index, parameter in enumerate(row.inputs):
            if parameter.type != kind:
                continue
            for name, handle in wrong.items():
                answer = getattr(cuda, row.name)(*valid[:index], handle, *valid[index + 1 :])
                if answer[0] == cuda.CUresult.CUDA_SUCCESS and name != "null" and row.name != EMPTY_BATCH:
                    accepted.append((row.name, parameter.name, name))
                ok(cuda.cuCtxSetCurrent(context))
                assert contexts[int(context)].sticky_error is None, (row.name, parameter.name, name, last_error())
    assert not accepted


def _read_recorded() -> dict[str, dict[str, int]]:
    """Return the result of each recorded call, by function and call."""
    functions = {}
    for line in RECORDED.read_text().splitlines():
        name, *groups = line.split("; ")
        pairs = [group.partition(": ") for group in groups]
        functions[name] = {call: int(result) for result, _, calls in pairs for call in calls.split()}
    return functions


def _call_recorded(name: str, call: str, objects: dict[str, Any]) -> int:
    """Return the result of a call that the table describes."""
    row, arguments = SIGNATURES[name], []
    place, _, value = call.partition("=")
    for index, parameter in enumerate(row.parameters):
        if not parameter.is_input:
            continue
        is_handle = parameter.type in OF_CONTEXTS or parameter.type in OTHERS
        if place == str(index):
            arguments.append(0 if value == "NULL" else int(value))
        else:
            is_null = is_handle and call == NO_CONTEXT
            arguments.append(0 if is_null else _valid_argument(parameter, objects))
    return int(getattr(cuda, name)(*arguments)[0])


@pytest.mark.parametrize("has_context", [True, False])
def test_results_of_wrong_arguments_are_those_of_a_gpu(devices: None, has_context: bool) -> None:
    if has_context:
        ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    objects: dict[str, Any] = {}
    differences = {}
    for name, calls in _read_recorded().items():
        for call, result in calls.items():
            if (call != NO_CONTEXT) is has_context and (own := _call_recorded(name, call, objects)) != result:
                differences[name, call] = (own, result)
    assert not differences
