"""The recorded corpus (tests/data/corpus): its kernels, its modules, and what an H200 answered."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
KERNELS: dict[str, Any] = json.loads((CORPUS / "manifest.json").read_text())["kernels"]


@cache
def module_of(name: str) -> ModuleType:
    """Return a module of the corpus, which is no package."""
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CORPUS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def recorded() -> dict[str, np.ndarray[Any, Any]]:
    """Return what the H200 answered when the corpus was recorded, by NAME/OUTPUT."""
    with np.load(CORPUS / "recorded.npz") as archive:
        return dict(archive)


def is_recorded(name: str) -> bool:
    """Return whether the kernel was there when the corpus was recorded."""
    return any(key.startswith(f"{name}/") for key in recorded())
