"""Memory and events between processes."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_IPC: Final = """
cuIpcGetMemHandle(out CUipcMemHandle pHandle, CUdeviceptr dptr) = memory_handle
cuIpcOpenMemHandle(out CUdeviceptr pdptr, CUipcMemHandle handle, unsigned int Flags) = open_memory
cuIpcCloseMemHandle(CUdeviceptr dptr) = close_memory
cuIpcGetEventHandle(out CUipcEventHandle pHandle, CUevent event) = event_handle
cuIpcOpenEventHandle(out CUevent phEvent, CUipcEventHandle handle) = open_event
"""

ROWS: Final = chapter("_api.memory.ipc", _IPC)
