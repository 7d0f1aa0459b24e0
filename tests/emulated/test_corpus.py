"""Kernels recorded on a real GPU (tests/data/corpus) give the same answers here."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from recorded_corpus import CORPUS, KERNELS, failures, is_recorded, load_recorded, maps_of, module_of, objects_of

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.isa.faults import IllegalInstruction
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.conftest import use_tier
from tests.emulated.harness import Device, Never, batches, three


def outputs_of(name: str, kinds: set[type] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Launch a kernel of the corpus as its manifest says; its outputs by name. Notes the kinds of its batches."""
    entry = KERNELS[name]
    inputs = module_of("inputs")
    device = Device()
    module = LoadedModule(load_program((CORPUS / entry["ptx"]).read_bytes()), device.space, 4)
    contents = inputs.contents(entry)
    addresses = {
        key: module.address_of(key) if key in entry.get("globals", {}) else device.put(value)
        for key, value in contents.items()
    }
    for key in entry.get("globals", {}):
        addresses[key] = module.address_of(key)
        if key in contents:
            device.space.write(addresses[key], contents[key].tobytes())
    handles = {key: device.put(np.frombuffer(data, np.uint8)) for key, data in objects_of(entry, addresses).items()}
    arguments = inputs.arguments(entry, addresses | handles, maps_of(entry, addresses))
    used = run_together(module, entry, arguments)
    if kinds is not None:
        kinds |= used
    return {key: read(device, addresses[key], spec, inputs) for key, spec in inputs.outputs(entry).items()}


def run_together(module: LoadedModule, entry: dict[str, Any], arguments: list[bytes]) -> set[type]:
    """Step all batches of the launch in turn, as kernels that wait for other CTAs need it. Return their kinds."""
    grid, block = three(tuple(entry["grid"])), three(tuple(entry["block"]))
    waiting = batches(module, entry["entry"], grid, block, tuple(arguments), entry["shared"])
    kinds = set(map(type, waiting))
    while waiting:
        waiting = [batch for batch in waiting if not batch.step(0.01, Never())]
    return kinds


def read(device: Device, address: int, spec: dict[str, Any], inputs: ModuleType) -> np.ndarray[Any, Any]:
    return device.get(address, np.zeros(spec["shape"], inputs.storage(spec["dtype"])))


TIERS = ("numpy", *(pytest.param(tier, marks=pytest.mark.long("")) for tier in ("compiled", "escaping")))
LARGE = ("bitonic", "carry_orders", "divide128", "local_array", "math_")
TOO_LARGE = ("wgmma_layouts",)
"""Kernels that take LLVM half a minute; they run in NumPy only."""


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_same_as_recorded(monkeypatch: pytest.MonkeyPatch, tier: str, name: str) -> None:
    """Every output agrees with the GPU's, by the rule that the corpus gives for it; what it refuses is refused."""
    if name in TOO_LARGE:
        tier = "numpy"
        use_tier(monkeypatch, tier)
    if name.startswith(LARGE):
        use_tier(monkeypatch, tier, max_escapes=1)
    if not is_recorded(name) and name not in failures():
        with contextlib.suppress(IllegalInstruction):
            outputs_of(name)
        pytest.skip("not recorded yet: scripts/record-corpus")
    if name in failures():
        assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in failures()[name]
        with pytest.raises(IllegalInstruction):
            outputs_of(name)
        return
    kinds = check_recorded(name)
    assert kinds == {Batch if tier == "numpy" else CompiledBatch}


def check_recorded(name: str) -> set[type]:
    """Every output agrees with the GPU's, by the rule that the corpus gives for it. Return the kinds of batches."""
    kinds: set[type] = set()
    rules, actual = module_of("rules"), outputs_of(name, kinds)
    for output, spec in module_of("inputs").outputs(KERNELS[name]).items():
        good = rules.agree(spec, actual[output], load_recorded()[f"{name}/{output}"])
        assert good.all(), f"{output}: {np.count_nonzero(~good)} of {good.size} differ"
    return kinds
