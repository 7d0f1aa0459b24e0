"""The functions of the driver API, one row each: name, parameters as in C, and the core function behind it.

A row is ``name(parameters) = core``. Parameters are in C's order with C's types. ``out`` marks those that C returns
through a pointer and Python returns in the tuple, ``inout`` those that a caller also passes. The core is a function
in ``pympsd_client``, in the chapter's module unless the row names another. It gets the inputs in order, or the
arguments in its own parentheses, as plain ints, structures, names and `HostMemory`. It returns the outputs as plain
values, and raises CudaError.

One row makes three things: the Python function of `pympsd_client.driver` (`_api.entry_point`), the C function for
programs under pympsd-run (`routing.driver`), and the core's place in the documentation. An example::

    cuMemcpyHtoD(CUdeviceptr dstDevice, void *srcHost, size_t ByteCount)
        = _api.memory.copies.copy_host_to_device(dstDevice, srcHost, ByteCount, 0, True)

has three inputs and no output. ``void *`` is host memory: an address, or an object with a buffer that stays open
during the call. The row names the core's module, and passes the default stream and ``wait=True`` after the inputs.

>>> row = SIGNATURES["cuMemcpyHtoD"]
>>> row.core, row.input_names, row.outputs
('copy_host_to_device', ('dstDevice', 'srcHost', 'ByteCount'), ())
>>> [parameter.type for parameter in SIGNATURES["cuMemAlloc"].outputs]
['CUdeviceptr']

Two things that a row does not state follow from the types: which values are converted (`_api.conversions`), and how
C's structures are read (`_arguments`). `Calling` marks functions that may be called before cuInit or in host
functions, and functions whose parameters differ between versions of cuda-bindings.
"""

from typing import Final

from pympsd_client.signatures import devices, execution, graphs, memory
from pympsd_client.signatures.rows import Calling, Parameter, Signature

_CHAPTERS: Final = (devices, memory, execution, graphs)
SIGNATURES: Final = {row.name: row for chapter in _CHAPTERS for row in chapter.ROWS}
"""The rows by name."""

__all__ = ["SIGNATURES", "Calling", "Parameter", "Signature"]
