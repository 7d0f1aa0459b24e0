"""Attributes of addresses (CUDA driver API, Unified Addressing)."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_POINTERS: Final = """
cuPointerGetAttribute(out void data, CUpointer_attribute attribute, CUdeviceptr ptr) = attribute
cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, out void *data, CUdeviceptr ptr)
    = attributes
cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) = set_attribute
cuMemGetAddressRange(out CUdeviceptr pbase, out size_t psize, CUdeviceptr dptr) = address_range
"""

ROWS: Final = chapter("_api.memory.pointer", _POINTERS)
