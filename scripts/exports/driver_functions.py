"""Write the table of the driver's functions from CUDA's headers: names, C types and versions, which are facts.

    python3 scripts/exports/driver_functions.py /usr/local/cuda/include

cuda.h, cudaProfiler.h and the headers of graphics (OpenGL, EGL, VDPAU) have the declarations. With
__CUDA_API_VERSION_INTERNAL they declare every version of a function under its own name. cudaTypedefs.h and the like
have a type for each name that cuGetProcAddress knows, and the version of CUDA since which it stands for these
parameters.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "pympsd_client/native/src/libcuda/functions.h"
OWN = ("cuGetExportTable", "cuGetProcAddress", "cuGetProcAddress_v2")
"""Functions that libcuda's own C code has (exports.c)."""
MIN_PER_THREAD = 7000
"""The version of CUDA that introduced per-thread default streams."""
GRAPHICS = """
typedef unsigned int GLuint, GLenum;
typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR;
typedef int EGLint;
typedef unsigned int VdpDevice, VdpFuncId, VdpStatus, VdpVideoSurface, VdpOutputSurface;
typedef VdpStatus VdpGetProcAddress(VdpDevice, VdpFuncId, void **);
"""
"""What the headers of graphics use of `OTHERS`, which are empty here."""
OTHERS = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")
NAMES = ("cuda", "cudaProfiler", "cudaGL", "cudaEGL", "cudaVDPAU")
HEADERS = GRAPHICS + "".join(f"#include <{name}.h>\n" for name in NAMES)
TYPEDEFS = GRAPHICS + "".join(f"#include <{name}Typedefs.h>\n" for name in NAMES)
EVERY_VERSION = "-D__CUDA_API_VERSION_INTERNAL"
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
DECLARATION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
TYPEDEF = re.compile(r"typedef\s+CUresult\s*\(\s*\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\)\s*\(([^;]*)\)\s*;")
SUFFIX = re.compile(r"(?:_v(\d+))?(_ptds|_ptsz)?$")
BEGINNING = """\
/* Written by scripts/exports/driver_functions.py: every function of the driver API of CUDA {version}.
 *
 * FUNCTION(name, version, parameters): the version of CUDA since which cuGetProcAddress returns it for the name
 * without its suffix. PER_THREAD is a function and the one for per-thread default streams, VERSION_2 a function and
 * its second version with the same parameters (../stubs.h); OWN those of exports.c. */

"""


def preprocess(source: str, include: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as empty:
        for header in OTHERS:
            Path(empty, header).parent.mkdir(exist_ok=True)
            Path(empty, header).touch()
        command = ["cc", "-E", "-P", f"-I{empty}", f"-I{include}", *options, "-xc", "-"]
        text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return ATTRIBUTE.sub("", text)


def types(parameters: str) -> str:
    """Return the types of a list of parameters, without their names."""
    result = []
    for parameter in parameters.split(","):
        words = parameter.replace("*", " * ").replace("struct ", "").split()
        if len(words) > 1 and words[-1] != "*":  # the last word is the parameter's name
            words.pop()
        result.append(" ".join(words).replace("* *", "**"))
    return ", ".join(result)


def versions(functions: dict[str, str], typedefs: str) -> dict[str, int]:
    """Return the version of each function that cuGetProcAddress returns for a name without suffix.

    The typedefs of a name and its functions are in the same order: the n-th oldest belong together. Names that have
    had more functions than typedefs begin with functions without any.
    """
    of_name: dict[tuple[str, str], list[int]] = {}
    for name, version, thread, _ in TYPEDEF.findall(typedefs):
        of_name.setdefault((name, thread), []).append(int(version))
    result = {}
    for (name, thread), numbers in of_name.items():
        names = sorted(
            (f for f in functions if SUFFIX.sub("", f) == name and (SUFFIX.search(f)[2] or "") == thread),  # type: ignore[index]
            key=lambda f: int(SUFFIX.search(f)[1] or 1),  # type: ignore[index]
        )
        numbers = sorted(set(numbers))
        if len(names) < len(numbers):
            sys.exit(f"{name}{thread}: versions {numbers}, but functions {names}")
        result.update(zip(names[len(names) - len(numbers) :], numbers, strict=True))
    return result


def in_pairs(functions: dict[str, tuple[str, int, str]]) -> list[str]:
    """Return the rows of a table, by name.

    A function and the one for per-thread default streams are one row, and so are a function and its second version
    with the same parameters.

    >>> in_pairs({"cuF": ("FUNCTION", 4000, "int"), "cuF_ptsz": ("FUNCTION", 7000, "int"), "cuG": ("OWN", 0, "int")})
    ['PER_THREAD(cuF, _ptsz, 4000, "int")', 'OWN(cuG, 0, "int")']
    >>> in_pairs({"cuF": ("FUNCTION", 2000, "int"), "cuF_v2": ("FUNCTION", 3020, "int")})
    ['VERSION_2(cuF, 2000, 3020, "int")']
    """
    rows = {
        name: f'{kind}({name}, {version}, "{parameters}")' for name, (kind, version, parameters) in functions.items()
    }
    for name in functions:
        base, suffix = name[:-5], name[-5:]
        if suffix in {"_ptsz", "_ptds"} and functions[base][0] == "FUNCTION":
            kind, version, parameters = functions[base]
            if functions[name] != (kind, version and max(version, MIN_PER_THREAD), parameters):
                sys.exit(f"{name} {functions[name]} is not {base} {functions[base]} for per-thread streams")
            rows[base] = f'PER_THREAD({base}, {suffix}, {version}, "{parameters}")'
            del rows[name]
    for name, (_, version, parameters) in functions.items():
        second = f"{name}_v2"
        if rows.get(name, "").startswith("FUNCTION") and rows.get(second, "").startswith("FUNCTION"):
            _, since, parameters_of_second = functions[second]
            if parameters == parameters_of_second:
                rows[name] = f'VERSION_2({name}, {version}, {since}, "{parameters}")'
                del rows[second]
    return [rows[name] for name in sorted(rows)]


def main() -> None:
    include = sys.argv[1]
    text = preprocess(HEADERS, include) + preprocess(HEADERS, include, EVERY_VERSION)
    functions = {name: types(parameters) for name, parameters in DECLARATION.findall(text)}
    version_of = versions(functions, preprocess(TYPEDEFS, include, EVERY_VERSION))
    cuda = re.search(r"#define CUDA_VERSION (\d+)", Path(include, "cuda.h").read_text())
    assert cuda is not None
    lines = in_pairs(
        {
            name: ("OWN" if name in OWN else "FUNCTION", version_of.get(name, 0), parameters)
            for name, parameters in functions.items()
        }
    )
    version = f"{int(cuda[1]) // 1000}.{int(cuda[1]) % 1000 // 10}"
    TABLE.write_text(BEGINNING.format(version=version) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
