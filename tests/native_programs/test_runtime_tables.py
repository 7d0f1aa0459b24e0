"""The tables of libcudart's functions: names of CUDA 12 and 13, with the parameters of that version."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from processes import SECONDS

from tests.native_programs.conftest import read_table

REFUSED = """
import sys
from pympsd_client.routing.explain import Missing
from pympsd_client.routing.runtime.functions import resolve
for line in sys.stdin:
    name, _, parameters = line.rstrip().partition(" ")
    function, format = resolve(name, f"({parameters})")
    if not format and parameters != "void":
        try:
            function()
        except Missing as error:
            print(name if name in str(error) else f"{name} is not named")
        else:
            print(f"{name} is not refused")
"""
"""Prints which functions are refused; a process of its own, for routing replaces functions of its process."""
LACKING = re.compile(
    r"cudaArrayGet(MemoryRequirements|Plane|SparseProperties)|cudaMipmappedArrayGet(Memory|Sparse)\w+|cudaD?e?v?\w*AsyncNotification"
    r"|cuda\w*(EGL|GL|VDPAU|Graphics|External|NvSci|Logs|Atomic|GPUDirect)\w*|cudaMemcpy3DBatchAsync|cudaSetDoubleFor\w+"
    r"|cudaGetExportTable|cudaLaunchCooperativeKernelMultiDevice"
)
"""What pympsd does not have."""


@pytest.mark.parametrize(("version", "count"), [("12", 400), ("13", 390)])
def test_every_function_is_understood_or_refused_by_name(version: str, count: int) -> None:
    functions = read_table("cudart", version, own=False)
    assert len(functions) > count
    lines = "".join(f"{name} {parameters}\n" for name, parameters in functions.items())
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        cwd="/",
        input=lines,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    refused = {re.sub("_v2|_pt[sd][sz]", "", name) for name in done.stdout.splitlines()}
    assert "cudaGetExportTable" in refused
    assert {name for name in refused if not LACKING.fullmatch(name)} == set()
