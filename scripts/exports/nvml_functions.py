"""Write the table of NVML's functions: every name that a release of nvml.h has declared, old versions included.

    python3 scripts/exports/nvml_functions.py [NVML.H...]

The names are those of cuda.bindings.cynvml and of pynvml (nvidia-ml-py, if installed), those that the given headers
declare, and those that the table has, because a name stays. Only names are taken. Rows of the table stay as they are.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "pympsd_client/native/src/nvml/functions.h"
BEGINNING = """\
/* Written by scripts/exports/nvml_functions.py: every function of NVML, old versions included.
 *
 * FUNCTION and VERSION_2: see ../stubs.h. OWN_IN(name, ways): a function that this library has code for; session.c
 * explains the ways. */

"""
NOT_EXPORTED = {"nvmlEventTypeAll", "nvmlClocksEventReasonAll"}
"""Names in headers that are not functions of the library."""
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ROW_IN_TABLE = re.compile(r"^(\w+)\((\w+),.*", re.MULTILINE)
IN_BINDINGS = r"^cdef \S.*?\b(nvml[A-Z]\w+)\("
IN_PYNVML = r'_nvmlGetFunctionPointer\("(\w+)"'
FORMER_NAMES = r"^#undef (nvml[A-Z]\w*[a-zA-Z0-9])$(?<!_t)"
IN_HEADERS = r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Z]\w+)\s*\("


def find_names(path: Path, pattern: str) -> set[str]:
    """Return the names that a pattern finds in a file without its C comments; none if there is no file."""
    if not path.is_file():
        return set()
    return set(re.findall(pattern, COMMENTS.sub("", path.read_text(errors="replace")), re.MULTILINE))


def file_of(module: str) -> Path:
    """Return the path of a module's file; one that does not exist if the module is not installed."""
    spec = find_spec(module)
    return Path((spec.origin if spec is not None else None) or "/nonexistent")


def main() -> None:
    """Write the table."""
    rows = {row[2]: row[0] for row in ROW_IN_TABLE.finditer(TABLE.read_text())}
    second = {f"{name}_v2" for name, row in rows.items() if row.startswith("VERSION_2")}
    names = set(rows) | find_names(file_of("cuda.bindings").parent / "cynvml.pxd", IN_BINDINGS)
    names |= find_names(file_of("pynvml"), IN_PYNVML)
    for header in sys.argv[1:]:
        names |= find_names(Path(header), IN_HEADERS) | find_names(Path(header), FORMER_NAMES)
    lines = (rows.get(name, f'FUNCTION({name}, 0, "")') for name in sorted(names - second - NOT_EXPORTED))
    TABLE.write_text(BEGINNING + "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
