"""Stream capture."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_CAPTURE: Final = """
cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) = begin
cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, CUgraphNode *dependencies,
    CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode) = begin_to_graph
cuStreamEndCapture(CUstream hStream, out CUgraph phGraph) = end
cuStreamIsCapturing(CUstream hStream, out CUstreamCaptureStatus captureStatus) = is_capturing
cuStreamGetCaptureInfo(CUstream hStream, out CUstreamCaptureStatus captureStatus_out, out cuuint64_t id_out,
    out CUgraph graph_out, out CUgraphNode **dependencies_out, out CUgraphEdgeData **edgeData_out,
    out size_t numDependencies_out) = info
cuStreamGetCaptureInfo_v2(CUstream hStream, out CUstreamCaptureStatus captureStatus_out, out cuuint64_t id_out,
    out CUgraph graph_out, out CUgraphNode **dependencies_out, out size_t numDependencies_out) = info_without_edges
cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies, CUgraphEdgeData *dependencyData,
    size_t numDependencies, unsigned int flags) = change_dependencies
cuThreadExchangeStreamCaptureMode(inout CUstreamCaptureMode mode) = exchange_mode
"""

ROWS: Final = chapter("_graphs.capture_functions", _CAPTURE)
