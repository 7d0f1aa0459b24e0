"""Graphs, user objects, and stream capture."""

from typing import Final

from pympsd_client.signatures.rows import chapter

_STRUCTURE: Final = """
cuGraphCreate(out CUgraph phGraph, unsigned int flags) = create
cuGraphDestroy(CUgraph hGraph) = destroy
cuGraphClone(out CUgraph phGraphClone, CUgraph originalGraph) = clone
cuGraphNodeFindInClone(out CUgraphNode phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) = find_in_clone
cuGraphGetNodes(CUgraph hGraph, out CUgraphNode *nodes, inout size_t numNodes) = nodes
cuGraphGetRootNodes(CUgraph hGraph, out CUgraphNode *rootNodes, inout size_t numRootNodes) = root_nodes
cuGraphGetEdges(CUgraph hGraph, out CUgraphNode *from_, out CUgraphNode *to, out CUgraphEdgeData *edgeData,
    inout size_t numEdges) = edges
cuGraphNodeGetDependencies(CUgraphNode hNode, out CUgraphNode *dependencies, out CUgraphEdgeData *edgeData,
    inout size_t numDependencies) = dependencies
cuGraphNodeGetDependentNodes(CUgraphNode hNode, out CUgraphNode *dependentNodes, out CUgraphEdgeData *edgeData,
    inout size_t numDependentNodes) = dependent_nodes
cuGraphAddDependencies(CUgraph hGraph, CUgraphNode *from_, CUgraphNode *to, CUgraphEdgeData *edgeData,
    size_t numDependencies) = add_dependencies
cuGraphRemoveDependencies(CUgraph hGraph, CUgraphNode *from_, CUgraphNode *to, CUgraphEdgeData *edgeData,
    size_t numDependencies) = remove_dependencies
cuGraphDestroyNode(CUgraphNode hNode) = destroy_node
cuGraphNodeGetType(CUgraphNode hNode, out CUgraphNodeType type) = node_type
cuGraphGetId(CUgraph hGraph, out unsigned int graphId) = graph_id
cuGraphNodeGetLocalId(CUgraphNode hNode, out unsigned int nodeId) = local_id
cuGraphNodeGetToolsId(CUgraphNode hNode, out unsigned long long toolsNodeId) = tools_id
cuGraphNodeGetContainingGraph(CUgraphNode hNode, out CUgraph phGraph) = find_containing_graph
cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, out CUgraph phGraph) = child_graph
cuGraphDebugDotPrint(CUgraph hGraph, char *path, unsigned int flags) = _graphs.dot.print_to
cuUserObjectCreate(out CUuserObject object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
    unsigned int flags) = create_user_object
cuUserObjectRetain(CUuserObject object, unsigned int count) = retain_user_object
cuUserObjectRelease(CUuserObject object, unsigned int count) = release_user_object
cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) = retain
cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) = release
"""

_ADD: Final = "out CUgraphNode phGraphNode, nonnull CUgraph hGraph, CUgraphNode *dependencies, size_t numDependencies"
_AFTER: Final = "hGraph, dependencies, numDependencies"

_NODES: Final = f"""
cuGraphAddKernelNode({_ADD}, CUDA_KERNEL_NODE_PARAMS *nodeParams) = add('KERNEL', {_AFTER}, nodeParams)
cuGraphAddMemcpyNode({_ADD}, CUDA_MEMCPY3D *copyParams, CUcontext ctx) = add('MEMCPY', {_AFTER}, copyParams, ctx)
cuGraphAddMemsetNode({_ADD}, CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
    = add('MEMSET', {_AFTER}, memsetParams, ctx)
cuGraphAddBatchMemOpNode({_ADD}, CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
    = add('BATCH_MEM_OP', {_AFTER}, nodeParams)
cuGraphAddHostNode({_ADD}, CUDA_HOST_NODE_PARAMS *nodeParams) = add('HOST', {_AFTER}, nodeParams)
cuGraphAddChildGraphNode({_ADD}, CUgraph childGraph) = add_child
cuGraphAddEmptyNode({_ADD}) = add('EMPTY', {_AFTER})
cuGraphAddEventRecordNode({_ADD}, nonnull CUevent event) = add('EVENT_RECORD', {_AFTER}, event)
cuGraphAddEventWaitNode({_ADD}, nonnull CUevent event) = add('WAIT_EVENT', {_AFTER}, event)
cuGraphAddMemAllocNode({_ADD}, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) = add('MEM_ALLOC', {_AFTER}, nodeParams)
cuGraphAddMemFreeNode({_ADD}, CUdeviceptr dptr) = add_free
cuGraphMemAllocNodeGetParams(CUgraphNode hNode, out CUDA_MEM_ALLOC_NODE_PARAMS params_out)
    = get_parameters('MEM_ALLOC', hNode)
cuGraphMemFreeNodeGetParams(CUgraphNode hNode, out CUdeviceptr dptr_out) = address_to_free
cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, out void value) = memory_attribute
cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, const void *value) = set_memory_attribute
cuDeviceGraphMemTrim(CUdevice device) = trim_memory
cuGraphAddNode(out CUgraphNode phGraphNode, CUgraph hGraph, CUgraphNode *dependencies,
    CUgraphEdgeData *dependencyData, size_t numDependencies, CUgraphNodeParams *nodeParams) = add_any
cuGraphConditionalHandleCreate(out CUgraphConditionalHandle pHandle_out, nonnull CUgraph hGraph, CUcontext ctx,
    unsigned int defaultLaunchValue, unsigned int flags) = create_condition
cuGraphKernelNodeGetParams(CUgraphNode hNode, out CUDA_KERNEL_NODE_PARAMS nodeParams)
    = get_parameters('KERNEL', hNode)
cuGraphKernelNodeSetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
    = set_parameters('KERNEL', hNode, nodeParams)
cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, out CUkernelNodeAttrValue value_out)
    = kernel_attribute
cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value)
    = set_kernel_attribute
cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) = copy_kernel_attributes
cuGraphMemcpyNodeGetParams(CUgraphNode hNode, out CUDA_MEMCPY3D nodeParams) = get_parameters('MEMCPY', hNode)
cuGraphMemcpyNodeSetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams) = set_parameters('MEMCPY', hNode, nodeParams)
cuGraphMemsetNodeGetParams(CUgraphNode hNode, out CUDA_MEMSET_NODE_PARAMS nodeParams)
    = get_parameters('MEMSET', hNode)
cuGraphMemsetNodeSetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
    = set_parameters('MEMSET', hNode, nodeParams)
cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, out CUDA_BATCH_MEM_OP_NODE_PARAMS nodeParams_out)
    = get_parameters('BATCH_MEM_OP', hNode)
cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
    = set_parameters('BATCH_MEM_OP', hNode, nodeParams)
cuGraphHostNodeGetParams(CUgraphNode hNode, out CUDA_HOST_NODE_PARAMS nodeParams) = get_parameters('HOST', hNode)
cuGraphHostNodeSetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
    = set_parameters('HOST', hNode, nodeParams)
cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, out CUevent event_out) = get_parameters('EVENT_RECORD', hNode)
cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, nonnull CUevent event)
    = set_parameters('EVENT_RECORD', hNode, event)
cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, out CUevent event_out) = get_parameters('WAIT_EVENT', hNode)
cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, nonnull CUevent event) = set_parameters('WAIT_EVENT', hNode, event)
cuGraphNodeGetParams(CUgraphNode hNode, out CUgraphNodeParams nodeParams) = read_any_parameters
cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) = set_any
"""

_EXECUTABLE: Final = """
cuGraphInstantiate(out CUgraphExec phGraphExec, CUgraph hGraph, unsigned long long flags) = instantiate
cuGraphInstantiateWithFlags(out CUgraphExec phGraphExec, CUgraph hGraph, unsigned long long flags) = instantiate
cuGraphInstantiateWithParams(out CUgraphExec phGraphExec, CUgraph hGraph,
    CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) = instantiate_with_parameters
cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) = launch
cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) = upload
cuGraphExecDestroy(CUgraphExec hGraphExec) = destroy
cuGraphExecGetFlags(CUgraphExec hGraphExec, out cuuint64_t flags) = flags
cuGraphExecGetId(CUgraphExec hGraphExec, out unsigned int graphId) = executable_id
cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, out CUgraphExecUpdateResultInfo resultInfo) = update
cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
    = set_parameters('KERNEL', hGraphExec, hNode, nodeParams)
cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUDA_MEMCPY3D *copyParams, CUcontext ctx)
    = set_parameters('MEMCPY', hGraphExec, hNode, copyParams, ctx)
cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *memsetParams,
    CUcontext ctx) = set_parameters('MEMSET', hGraphExec, hNode, memsetParams, ctx)
cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
    CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) = set_parameters('BATCH_MEM_OP', hGraphExec, hNode, nodeParams)
cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
    = set_parameters('HOST', hGraphExec, hNode, nodeParams)
cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) = set_child
cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, nonnull CUevent event)
    = set_parameters('EVENT_RECORD', hGraphExec, hNode, event)
cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, nonnull CUevent event)
    = set_parameters('WAIT_EVENT', hGraphExec, hNode, event)
cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams) = set_any
cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, out unsigned int isEnabled) = is_enabled
cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) = set_enabled
"""

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

ROWS: Final = (
    *chapter("_graphs.structure", _STRUCTURE),
    *chapter("_graphs.node_functions", _NODES),
    *chapter("_graphs.executable_functions", _EXECUTABLE),
    *chapter("_graphs.capture_functions", _CAPTURE),
)
