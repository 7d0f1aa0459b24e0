"""One capture sequence: the graph that it adds to, its streams, and whether they are joined."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from attrs import define, field

from pympsd_client._arguments.graph_structs import Elements
from pympsd_client._graphs.graph import Edge, Graph, Node
from pympsd_client._objects.context import Context

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""CUstreamCaptureMode."""
NONE, ACTIVE, INVALIDATED = range(3)
"""CUstreamCaptureStatus."""
_next_id: Final = count(1).__next__

StreamKey = tuple[Context, int]
"""A stream: its context, and how records name it."""


@define(eq=False)
class Capture:
    """A capture sequence: begun in ``origin``, joined by other streams through events."""

    graph: Graph
    origin: StreamKey
    mode: int
    thread: int
    is_into_existing: bool
    id: int = field(factory=_next_id, init=False)
    reason: str = field(default="", init=False)
    """Why it was invalidated; empty while it is active."""
    next: dict[StreamKey, dict[Node, Edge]] = field(factory=dict, init=False)
    """Its streams, and what the next node of each depends on."""
    added: dict[Node, None] = field(factory=dict, init=False)
    """The nodes that were captured and must lead back to the origin."""
    arrays: dict[StreamKey, tuple[Elements, Elements]] = field(factory=dict, init=False)
    """What cuStreamGetCaptureInfo points to."""

    @property
    def status(self) -> int:
        """Its CUstreamCaptureStatus."""
        return INVALIDATED if self.reason else ACTIVE

    def add(self, stream: StreamKey, work: Any) -> Node:
        """Add a node to a stream of it."""
        after = {node: edge for node, edge in self.next[stream].items() if node.handle in self.graph.nodes}
        node = self.graph.add(work, after)
        self.next[stream] = {node: Edge()}
        self.added[node] = None
        return node

    def unjoined(self) -> bool:
        """Whether a captured node does not lead to the origin's latest work."""
        waiting = list(self.next[self.origin])
        joined = set(waiting)
        while waiting:
            for node in waiting.pop().dependencies:
                if node not in joined:
                    joined.add(node)
                    waiting.append(node)
        left = {node for node in self.added if node.handle in self.graph.nodes} - joined
        return any(not (left & set(node.dependents)) for node in left)
