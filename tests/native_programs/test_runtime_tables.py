"""The tables of libcudart's functions: names of CUDA 12 and 13, with the parameters of that version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pympsd_client
from pympsd_client.routing.explain import Missing
from pympsd_client.routing.runtime.functions import resolve

SOURCES = Path(pympsd_client.__file__).parent / "native" / "src" / "cudart"
LACKING = re.compile(
    r"cudaArrayGet(MemoryRequirements|Plane|SparseProperties)|cudaMipmappedArrayGet(Memory|Sparse)\w+|cudaD?e?v?\w*AsyncNotification"
    r"|cuda\w*(EGL|GL|VDPAU|Graphics|External|NvSci|Logs|Atomic|GPUDirect)\w*|cudaMemcpy3DBatchAsync|cudaSetDoubleFor\w+"
    r"|cudaGetExportTable|cudaLaunchCooperativeKernelMultiDevice"
)
"""What pympsd does not have."""


def _functions(version: str) -> dict[str, str]:
    text = (SOURCES / f"functions_{version}.h").read_text()
    return dict(re.findall(r'^FUNCTION\((\w+), 0, "(.*)"\)$', text, re.MULTILINE))


@pytest.mark.parametrize(("version", "count"), [("12", 400), ("13", 390)])
def test_every_function_is_understood_or_refused_by_name(version: str, count: int) -> None:
    functions = _functions(version)
    assert len(functions) > count
    refused = set()
    for name, parameters in functions.items():
        function, format = resolve(name, f"({parameters})")
        if not format and parameters != "void":
            with pytest.raises(Missing, match=name):
                function()
            refused.add(re.sub("_v2|_pt[sd][sz]", "", name))
    assert {name for name in refused if not LACKING.fullmatch(name)} == set()
