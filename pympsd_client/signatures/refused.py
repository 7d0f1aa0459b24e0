"""Functions that are refused by name, with the reason."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import Calling, chapter

# Parameters as in cuda-bindings 13; 12 has fewer for some, which makes no difference to a refusal.
_REFUSED: Final = """
cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
    = flush_remote_writes('cuFlushGPUDirectRDMAWrites')
"""

_PEERS: Final = """
cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) = enable_peer
cuCtxDisablePeerAccess(CUcontext peerContext) = disable_peer
"""

ROWS: Final = (
    *chapter("_api.unsupported", _REFUSED, Calling.VARIANTS),
    *chapter("_api.unsupported", _PEERS),
)
