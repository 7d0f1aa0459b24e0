"""Loading of images by the PTX translator, with its refusals as BackendError."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire import fatbin
from pympsd_server.backends.emulated.ptx.compiled_tier.selection import prepare
from pympsd_server.backends.emulated.ptx.isa.faults import InvalidPtx, NotPtx, UnsupportedByMps
from pympsd_server.backends.emulated.ptx.loading.program import Program, load_program
from pympsd_server.backends.emulated.ptx.syntax.tree import Target
from pympsd_server.backends.interface import BackendError

_CUBIN: Final = b"\x7fELF"
"""The first bytes of a cubin."""
_KEPT: Final = 32
_KEPT_BYTES: Final = 1 << 20
"""The number of translated programs that are kept, and the longest image of one: contexts load the same libraries."""
_translated: Final = lru_cache(_KEPT)(load_program)


def load(image: bytes, compute_capability: tuple[int, int]) -> Program:
    """Load an image, of a fatbin the PTX for a device.

    Raises BackendError: NO_BINARY_FOR_GPU for machine code, INVALID_IMAGE if it is not text, INVALID_PTX with the
    line and the instruction for what cannot be executed, and for the target of another device, NOT_SUPPORTED for what
    MPS does not support, and for code of other kinds. Kernels of a large image raise the last three when they are
    looked up, as in `refusals_as_backend_errors`.
    """
    prepare()
    with refusals_as_backend_errors():
        try:
            if image.startswith(fatbin.MAGIC):
                image = fatbin.ptx_of(image, compute_capability)
            program = _translated(image) if len(image) <= _KEPT_BYTES else load_program(image)
        except fatbin.FatbinError as error:
            raise BackendError(error.code, error.reason) from None
        except NotPtx as error:
            code = Result.ERROR_NO_BINARY_FOR_GPU if image.startswith(_CUBIN) else Result.ERROR_INVALID_IMAGE
            raise BackendError(code, str(error)) from None
        _check_target(program.target, compute_capability)
        return program


@contextmanager
def refusals_as_backend_errors() -> Iterator[None]:
    """Raise what the translator refuses, or fails at, as BackendError: INVALID_PTX, or NOT_SUPPORTED by MPS."""
    try:
        yield
    except BackendError:
        raise
    except UnsupportedByMps as error:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
    except InvalidPtx as error:
        raise BackendError(Result.ERROR_INVALID_PTX, str(error)) from None
    except RecursionError:
        raise BackendError(Result.ERROR_INVALID_PTX, "the image nests too deeply") from None
    except Exception as error:
        # An image that makes the translator fail is refused; it must not end the executor.
        reason = f"the translator cannot read this image: {type(error).__name__}: {error}"
        raise BackendError(Result.ERROR_INVALID_PTX, reason) from error


def _check_target(target: Target, capability: tuple[int, int]) -> None:
    if not target.serves(capability):
        only = {"a": "that device alone", "f": "its family alone"}.get(target.suffix, "that and newer devices")
        major, minor = capability
        raise InvalidPtx(
            f".target {target} is for {only}; this device is of compute capability {major}.{minor}: "
            f"compile for sm_{major}{minor} or older",
            target.line,
        )
