"""Write the table of the CUDA runtime's functions from CUDA's headers: names and C types, which are facts.

    python3 scripts/exports/runtime_functions.py functions CUDA12/include:CUDA13/include CUDA13/include
    python3 scripts/exports/runtime_functions.py errors /usr/local/cuda/lib64/libcudart.so.13

With __CUDA_API_VERSION_INTERNAL cuda_runtime_api.h declares every version of a function under its own name. The
functions for graphics libraries need those libraries' headers to be compiled, so their names are read from the text:
pympsd has none of them. Headers of a package may need those of a compiler, in a further folder after a colon.

Names and texts of errors are what a runtime's cudaGetErrorName and cudaGetErrorString return.
"""

import ctypes
import re
import sys
from pathlib import Path

from driver_functions import EVERY_VERSION, in_pairs, preprocess, types

SOURCES = Path(__file__).resolve().parents[2] / "pympsd_client/native/src/cudart"
OWN = """
cudaCreateChannelDesc cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion
cudaGetDriverEntryPointByVersion_ptsz cudaGetDriverEntryPoint_ptsz cudaGetErrorName cudaGetErrorString
cudaLaunchCooperativeKernel cudaLaunchCooperativeKernel_ptsz cudaLaunchKernel cudaLaunchKernelExC
cudaLaunchKernelExC_ptsz cudaLaunchKernel_ptsz cudaRuntimeGetVersion
"""
"""Functions that the C code of libcudart has."""
PRIVATE = {
    "pympsd_keep_error": "int",
    "pympsd_kernel": "cudaKernel_t *, const void *",
    "pympsd_ready": "void",
    "pympsd_set_registry": "void *, void *",
    "pympsd_unload": "void *",
    "pympsd_variable": "void **, size_t *, const void *",
}
"""Functions that the C code calls in Python, which are not exported (pympsd_client/routing/runtime/rows.py)."""
HEADERS = "#include <cuda_runtime_api.h>\n#include <cuda_profiler_api.h>\n"
GRAPHICS = ("cuda_gl_interop.h", "cuda_egl_interop.h", "cuda_vdpau_interop.h")
DECLARATION = re.compile(r"\b(\w+(?: char \*)?)\s+(?:\*\s*)?(cuda[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
IN_TEXT = re.compile(r"\bcudaError_t\s+CUDARTAPI\s+(cuda\w+)\s*\(")
PROPERTIES = {
    ("12", "cudaGetDeviceProperties"): "cudaDeviceProp_v11 *",
    ("12", "cudaGetDeviceProperties_v2"): "cudaDeviceProp_v12 *",
    ("12", "cudaChooseDevice"): "cudaDeviceProp_v12 *",
    ("13", "cudaGetDeviceProperties"): "cudaDeviceProp_v13 *",
    ("13", "cudaChooseDevice"): "cudaDeviceProp_v13 *",
}
"""The layout of the cudaDeviceProp that a function has: the headers do not name it."""
FUNCTIONS_BEGINNING = """\
/* Written by scripts/exports/runtime_functions.py: every function of the runtime API of CUDA 12 and 13.
 *
 * FUNCTION(name, version, parameters) is a stub (../stubs.h), OWN has the functions of this folder's C code, OF_12
 * and OF_13 what only that runtime has, or has with other parameters. The last ones are not exported. */

#if CUDA_MAJOR == 12
#define OF_12(row) row
#define OF_13(row)
#else
#define OF_12(row)
#define OF_13(row) row
#endif
"""
ERRORS_BEGINNING = """\
/* Written by scripts/exports/runtime_functions.py: the errors of the runtime API by number, with their texts. */

"""
MAX_ERROR = 1000


def list_declared(includes: list[str], *options: str) -> dict[str, str]:
    """Return the types of the parameters of each function that the headers declare."""
    text = preprocess(HEADERS, includes[0], *(f"-idirafter{folder}" for folder in includes[1:]), *options)
    return {name: types(parameters) for _, name, parameters in DECLARATION.findall(text)}


def rows(major: str, includes: list[str]) -> list[str]:
    """Return the rows of one version of the runtime."""
    functions = list_declared(includes) | list_declared(includes, EVERY_VERSION)
    for header in GRAPHICS:
        path = next(file for file in (Path(folder, header) for folder in includes) if file.exists())
        functions |= dict.fromkeys(IN_TEXT.findall(path.read_text()), "")
    for (of, name), type in PROPERTIES.items():
        if of == major:
            functions[name] = re.sub(r"(const )?cudaDeviceProp \*", type, functions[name])
    return in_pairs({name: ("OWN" if name in OWN.split() else "FUNCTION", 0, functions[name]) for name in functions})


def write_functions(of_12: str, of_13: str) -> None:
    """Write functions.h."""
    rows_12, rows_13 = rows("12", of_12.split(":")), rows("13", of_13.split(":"))
    marked = {row: row for row in rows_12 if row in rows_13}
    marked |= {row: f"OF_12({row})" for row in rows_12 if row not in rows_13}
    marked |= {row: f"OF_13({row})" for row in rows_13 if row not in rows_12}
    lines = [marked[row] for row in sorted(marked, key=lambda row: re.split(r"[(,]", row)[1])]
    lines += [f'FUNCTION({name}, 0, "{parameters}")' for name, parameters in PRIVATE.items()]
    (SOURCES / "functions.h").write_text(FUNCTIONS_BEGINNING + "\n".join(lines) + "\n")


def write_errors(path: str) -> None:
    """Write errors.h."""
    library = ctypes.CDLL(path)
    names, texts = library.cudaGetErrorName, library.cudaGetErrorString
    names.restype = texts.restype = ctypes.c_char_p
    unknown = names(-1)
    lines = [
        f'ERROR({number}, "{names(number).decode()}", "{texts(number).decode()}")'
        for number in range(MAX_ERROR)
        if names(number) != unknown
    ]
    (SOURCES / "errors.h").write_text(ERRORS_BEGINNING + "\n".join(lines) + "\n")


if __name__ == "__main__":
    what, *places = sys.argv[1:]
    if what == "errors":
        write_errors(places[0])
    else:
        write_functions(*places)
