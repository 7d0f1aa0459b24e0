"""Linking of PTX (CUDA driver API, Module Management, cuLink*)."""

from __future__ import annotations

import ctypes
from typing import Any

from pympsd_client._arguments import jit_options
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects.code.link import Link, link_of, links
from pympsd_client._objects.code.module import image_of
from pympsd_client._objects.context import current


def create(count: int, options: Any, values: Any) -> int:
    """Begin a link in the current context; options are its logs, and MAX_REGISTERS of inputs without their own."""
    context = current()
    context.usable()
    made = Link(context, jit_options.read(count, options, values))
    links[made.handle] = made
    return made.handle


def add(link: int, kind: int, data: HostMemory, size: int, name: str, count: int, options: Any, values: Any) -> None:
    """Add PTX of ``size`` bytes; as another type than CU_JIT_INPUT_PTX also a fatbin that holds some.

    INVALID_PTX, INVALID_IMAGE, with the reason in the error log; UNKNOWN for a symbol that is defined twice;
    NOT_SUPPORTED for other inputs, NO_BINARY_FOR_GPU for fatbins without PTX for the device, JIT_COMPILER_NOT_FOUND
    for NVVM IR.
    """
    found = link_of(link)
    data.check(size, to_be_written=False)
    found.add(
        kind, ctypes.string_at(data.address, size), name, jit_options.read(count, options, values).max_registers
    )


def add_file(link: int, kind: int, path: str, count: int, options: Any, values: Any) -> None:
    """Add a file (its name as bytes); FILE_NOT_FOUND, else as cuLinkAddData."""
    found, registers = link_of(link), jit_options.read(count, options, values).max_registers
    found.add(kind, image_of(path.encode("utf-8", "surrogateescape")), path, registers)


def complete(link: int) -> tuple[int, int]:
    """Return the address and the size in bytes of the linked image, for cuModuleLoadData: PTX, until cuLinkDestroy.

    UNKNOWN for a symbol that no input defines, with its name in the error log.
    """
    return link_of(link).complete()


def destroy(link: int) -> None:
    """End a link and free its image."""
    links.pop(link_of(link).handle, None)
