#!/usr/bin/env python3
"""Regenerate the corpus's PTX from its CUDA C++: ``compile.py [NAME...]``.

Needs ``cuda-bindings``, and an NVRTC no newer than 13.0 (README.md reports how to get one): the PTX of a newer
one is refused by the driver that recorded the results. Each source is compiled a second time to machine code,
which is thrown away: NVRTC does not read inline assembly, only the assembler inside it does.
"""

import json
import os
import sys
from pathlib import Path

from cuda.bindings import nvrtc

HERE = Path(__file__).resolve().parent
NEWEST_PTX = (9, 0)
# Sums of products are rounded twice unless a kernel asks otherwise: then only what PTX states can happen.
OPTIONS = ("--fmad=false", "--std=c++17")


def include_folders() -> list[str]:
    """Where the headers are: in the packages next to NVRTC's, or where CORPUS_INCLUDE says."""
    folders = [os.environ["CORPUS_INCLUDE"]] if "CORPUS_INCLUDE" in os.environ else []
    patterns = ("nvidia/*/include", "nvidia/*/include/cccl")
    return folders + [str(path) for entry in sys.path for pattern in patterns for path in Path(entry).glob(pattern)]


def check(result: nvrtc.nvrtcResult) -> None:
    """Raise if a call failed."""
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(str(result))


def build(name: str, options: list[str], *, machine_code: bool) -> bytes:
    """PTX (or machine code) of one source; the compiler's log goes into the error."""
    source = (HERE / f"{name}.cu").read_bytes()
    error, program = nvrtc.nvrtcCreateProgram(source, f"{name}.cu".encode(), 0, [], [])
    check(error)
    encoded = [option.encode() for option in options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"{name}: {error}\n{log.decode(errors='replace')}")
    size_of, get = (
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if machine_code else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    )
    error, size = size_of(program)
    check(error)
    out = b" " * size
    check(get(program, out)[0])
    nvrtc.nvrtcDestroyProgram(program)
    return out


def to_ptx(name: str, entry: dict) -> str:
    """The PTX of one kernel, checked by the assembler and for its version."""
    options = [
        *OPTIONS,
        *entry.get("options", []),
        *(f"--include-path={folder}" for folder in include_folders()),
    ]
    arch = entry.get("arch", "compute_75")
    ptx = build(name, [*options, f"--gpu-architecture={arch}"], machine_code=False).decode().rstrip("\0")
    build(name, [*options, f"--gpu-architecture={arch.replace('compute', 'sm')}"], machine_code=True)
    version = next(line.split()[1] for line in ptx.splitlines() if line.startswith(".version"))
    if tuple(map(int, version.split("."))) > NEWEST_PTX:
        raise RuntimeError(f"{name}: PTX {version} is newer than {NEWEST_PTX}: use an older NVRTC")
    return ptx


def main(names: list[str]) -> int:
    """Compile the named kernels, or all."""
    kernels = json.loads((HERE / "manifest.json").read_text())["kernels"]
    failed = 0
    # Kernels that differ in their parameters share a source; those without one are written as PTX.
    chosen = [kernels[name] for name in names or kernels if "source" in kernels[name]]
    sources = {Path(entry["source"]).stem: entry for entry in chosen}
    for name, entry in sources.items():
        try:
            ptx = to_ptx(name, entry)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        (HERE / entry["ptx"]).write_text(ptx)
        print(f"{name}: {len(ptx)} bytes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
