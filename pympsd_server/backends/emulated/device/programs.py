"""Loading of images by the PTX translator, with its refusals as BackendError."""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.ptx.faults import InvalidPtx, NotPtx, UnsupportedByMps
from pympsd_server.backends.emulated.ptx.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.program import Kernel, Program, load_program
from pympsd_server.backends.emulated.ptx.runtime.batch import Batch, preferred_blocks
from pympsd_server.backends.interface import BackendError

__all__ = ["Batch", "Kernel", "LoadedModule", "Program", "load", "preferred_blocks"]

_BINARIES: Final = (b"\x7fELF", bytes.fromhex("b1436246"), bytes.fromhex("50ed55ba"))
"""How cubins and fatbins begin."""


def load(image: bytes) -> Program:
    """Translate an image. BackendError NO_BINARY_FOR_GPU for machine code, INVALID_IMAGE if it is no text,
    INVALID_PTX with the line and the instruction for what cannot be executed, NOT_SUPPORTED for what MPS does not.
    """
    try:
        return load_program(image)
    except NotPtx as error:
        code = Result.ERROR_NO_BINARY_FOR_GPU if image.startswith(_BINARIES) else Result.ERROR_INVALID_IMAGE
        raise BackendError(code, str(error)) from None
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
