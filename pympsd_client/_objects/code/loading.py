"""Loading of modules: their code in the executor, and their managed variables where the program reaches them."""

from __future__ import annotations

from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.context import Context
from pympsd_client._objects.managed.variables import place
from pympsd_client._objects.module import Module, load_image


def load(image: bytes, context: Context | None = None) -> Module:
    """Load an image into a context (None: the current one); raise CudaError, whose reason is the compiler's log."""
    module = load_image(image, context)
    try:
        place(module)
    except CudaError:
        module.unload()
        raise
    return module
