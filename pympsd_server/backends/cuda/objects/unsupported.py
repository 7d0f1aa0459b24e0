"""The parts of the port that this backend refuses: virtual memory management, and conditional nodes of graphs.

Both are optional (the capabilities ``maps_virtual_memory`` and ``evaluates_conditions`` are false): the executor
answers a client with the error that is raised here. A client's calls are checked against its own allocations, which
this backend maps itself, so a client cannot be allowed to map memory; and a kernel's cudaGraphSetConditional refers
to a graph of the driver, which this backend, executing a graph node by node, does not create.
"""

from typing import Any, NoReturn

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError


class NoVirtualMemory:
    """A context whose client maps no memory: every call raises BackendError NOT_SUPPORTED."""

    def _refuse_memory(self, *arguments: Any, **options: Any) -> NoReturn:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "clients of this device map no memory themselves")

    create_memory = import_memory = import_peers_memory = share_allocation = publish_window = _refuse_memory
    map_memory = unmap_memory = set_access = map_peer = unmap_peer = _refuse_memory


class NoConditions:
    """A context without conditional nodes: every call raises BackendError NOT_SUPPORTED."""

    def _refuse_condition(self, *arguments: Any, **options: Any) -> NoReturn:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "graphs on this device have no conditional nodes")

    condition = call = _refuse_condition
