"""Memory pools: stream-ordered allocation within the client (docs/decisions/014-memory-pools.md)."""
