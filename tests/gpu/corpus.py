"""The recorded corpus (tests/data/corpus), run on any device through the port."""

from __future__ import annotations

from typing import Any

import numpy as np
from recorded_corpus import CORPUS, KERNELS, maps_of, module_of, objects_of

from tests.gpu.devices import OneDevice

SHOWN = 5
Array = np.ndarray[Any, Any]


def outputs_on(device: OneDevice, name: str) -> dict[str, Array]:
    """Launch a kernel as in its manifest; return its outputs by name.

    Only the emulated device has textures and tensor maps here.
    """
    entry, inputs = KERNELS[name], module_of("inputs")
    device.fresh()
    module = device.load((CORPUS / entry["ptx"]).read_bytes())
    contents = inputs.contents(entry)
    addresses = {key: module.variables[key] for key in entry.get("globals", {})}
    for key, value in contents.items():
        if key in addresses:
            device.write(addresses[key], value.tobytes())
        else:
            addresses[key] = device.put(value)
    objects = objects_of(entry, addresses)
    handles = {key: device.put(np.frombuffer(data, np.uint8)) for key, data in objects.items()}
    arguments = inputs.arguments(entry, addresses | handles, maps_of(entry, addresses))
    device.launch(module, entry["entry"], entry["grid"], entry["block"], entry["shared"], arguments)
    return {key: _read(device, addresses[key], spec) for key, spec in inputs.outputs(entry).items()}


def _read(device: OneDevice, address: int, spec: dict[str, Any]) -> Array:
    dtype = module_of("inputs").storage(spec["dtype"])
    shape = tuple(np.atleast_1d(spec["shape"]))
    return np.frombuffer(device.read(address, int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def differences(name: str, left: tuple[str, dict[str, Array]], right: tuple[str, dict[str, Array]]) -> list[str]:
    """Return where two devices' outputs differ more than the corpus allows, with a few inputs and outputs."""
    entry, text = KERNELS[name], []
    contents = module_of("inputs").contents(entry)
    for output, spec in module_of("inputs").outputs(entry).items():
        first, second = left[1][output], right[1][output]
        wrong = np.argwhere(~module_of("rules").agree(spec, first, second))
        if not len(wrong):
            continue
        text.append(f"{entry['ptx']}, {output} ({spec['compare']}): {len(wrong)} of {first.size} differ")
        for place in map(tuple, wrong[:SHOWN]):
            inputs = {key: _render(value[place]) for key, value in contents.items() if value.shape == first.shape}
            message = f"{left[0]} {_render(first[place])}, {right[0]} {_render(second[place])}"
            text.append(f"  at {tuple(map(int, place))} of {inputs}: {message}")
    return text


def _render(value: Any) -> str:
    return f"{value} ({value.tobytes()[::-1].hex()})"
