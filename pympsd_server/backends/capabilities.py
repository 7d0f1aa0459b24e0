"""What devices of a backend can do, and the limits that their contexts have: values that callers ask for."""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen


@frozen
class Capabilities:
    """The capabilities of a backend's device, as values: callers never ask which backend or model it is."""

    isolates_address_spaces: bool
    """Whether clients' memory is isolated from each other's kernels (from calls it always is)."""
    contains_faults: bool
    """Whether a fault can be contained to its client; if not, the device's process must be replaced."""
    stops_kernels: bool
    """Whether a running kernel can be stopped."""
    limits_multiprocessors: bool
    """Whether a context can be limited to some of the device's SMs."""
    limits_memory: bool
    """Whether a client can be limited to some of the device's memory."""
    sees_blocks: bool = True
    """Whether its traces report the start of blocks."""
    passes_waiting_kernels: bool = True
    """Whether a kernel can begin while an earlier one of another stream waits for room."""
    maps_virtual_memory: bool = False
    """Whether clients map memory at addresses that they choose (``create_memory``, ``map_memory`` ...)."""
    maps_host_memory: bool = False
    """Whether kernels can access memory given to ``register_host_memory`` by its address."""
    evaluates_conditions: bool = False
    """Whether graphs have conditional nodes (``condition``, ``call``)."""


class Limit(IntEnum):
    """The limits of a context that concern its kernels, by their numbers in CUlimit."""

    PRINT_BYTES = 1
    """The size of the buffer of what kernels print."""
    HEAP_BYTES = 2
    """The size of the heap of kernels' malloc."""
