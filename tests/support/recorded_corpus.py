"""The recorded corpus (tests/data/corpus): its kernels, its modules, and what an H200 answered."""

from __future__ import annotations

import importlib.util
import json
import struct
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pympsd.wire import tensor_map
from pympsd.wire.tensor_map import Im2col, TensorMap
from pympsd.wire.texture_object import Level, Sampling, TexturedKind, TextureObject, pack

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
KERNELS: dict[str, Any] = json.loads((CORPUS / "manifest.json").read_text())["kernels"]


@cache
def module_of(name: str) -> ModuleType:
    """Return a module of the corpus, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CORPUS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def objects_of(entry: dict[str, Any], addresses: dict[str, int]) -> dict[str, bytes]:
    """Return a kernel's texture and surface objects as the emulated device finds them in memory.

    ``addresses`` are those of the contents of the arrays.
    """
    objects = {}
    for name, spec in entry.get("objects", {}).items():
        array = entry["arrays"][spec["array"]]
        depth, height, width, channels = array["shape"]
        pitch = width * channels * np.dtype(array["dtype"]).itemsize
        level = Level(addresses[spec["array"]], pitch, pitch * height, width, height, depth)
        kind = TexturedKind.SURFACE if spec.get("surface") else TexturedKind.ARRAY
        border = struct.unpack("4I", struct.pack("4f", *spec.get("border", (0, 0, 0, 0))))
        sampling = Sampling(
            tuple(spec.get("modes", (0, 0, 0))), spec.get("filter", 0), spec.get("flags", 0), border=border
        )
        format = module_of("inputs").ARRAY_FORMATS[array["dtype"]]
        objects[name] = pack(TextureObject(kind, format, channels, sampling, (level,)))
    return objects


def maps_of(entry: dict[str, Any], addresses: dict[str, int]) -> dict[str, bytes]:
    """Return a kernel's tensor maps as the emulated device has them; ``addresses`` are those of the buffers."""
    maps = {}
    for name, spec in entry.get("maps", {}).items():
        arguments = module_of("inputs").tensor_map(spec, addresses)
        rank, column = arguments["tensorRank"], None
        if "boxDim" not in arguments:
            corners = (tuple(arguments[f"pixelBox{side}Corner"]) for side in ("Lower", "Upper"))
            column = Im2col(*corners, arguments["channelsPerPixel"], arguments["pixelsPerColumn"])
        of = TensorMap(
            arguments["tensorDataType"], arguments["globalAddress"],
            tuple(arguments["globalDim"]), tuple(arguments["globalStrides"]),
            tuple(arguments.get("boxDim", [0] * rank)), tuple(arguments["elementStrides"]), arguments["interleave"],
            arguments["swizzle"], arguments["l2Promotion"], arguments["oobFill"], column,
        )  # fmt: skip
        tensor_map.check(of)
        maps[name] = tensor_map.pack(of)
    return maps


@cache
def load_recorded() -> dict[str, np.ndarray[Any, Any]]:
    """Return the H200's recorded outputs, by NAME/OUTPUT."""
    with np.load(CORPUS / "recorded.npz") as archive:
        return dict(archive)


@cache
def failures() -> dict[str, str]:
    """Return the kernels that the GPU refused to execute, with their errors."""
    document: dict[str, str] = json.loads((CORPUS / "recorded.json").read_text())["failures"]
    return document


def is_recorded(name: str) -> bool:
    """Return whether the recorded corpus contains the kernel."""
    return any(key.startswith(f"{name}/") for key in load_recorded())
