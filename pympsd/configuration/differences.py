"""What differs between a namespace and what a file says of it, in words."""

from __future__ import annotations

from pympsd.state_machine.state.named_server import Namespace
from pympsd.vocabulary.namespaces import NamespaceLimits
from pympsd.vocabulary.texts import memory_limits_text, percentage_text


def differences_of(namespace: Namespace, wanted: NamespaceLimits, ordinals: tuple[int, ...]) -> tuple[str, ...]:
    """Return each difference; of the limits of memory those of the server's devices."""
    differences = []
    percentage, memory, priority = wanted.thread_percentage, wanted.pinned_memory, wanted.client_priority
    if percentage is not None and percentage != namespace.thread_percentage:
        before = percentage_text(namespace.thread_percentage)
        differences.append(f"active-thread-percentage {before} -> {percentage_text(percentage)}")
    for what, limits, present in (
        ("pinned-memory-limit", memory, namespace.pinned_memory),
        ("total-memory-limit", wanted.total_memory, namespace.total_memory),
    ):
        if limits is not None and any(limits.get(each) != present.get(each) for each in ordinals):
            before, after = memory_limits_text(present, ordinals), memory_limits_text(limits, ordinals)
            differences.append(f"{what} {before} -> {after}")
    partition, bound = wanted.sm_partition, namespace.limits.sm_partition or ""
    if partition is not None and partition != bound:
        differences.append(f"sm-partition {bound or 'none'} -> {partition or 'none'}")
    if priority is not None and priority != namespace.client_priority:
        differences.append(f"client-priority {namespace.client_priority} -> {priority}")
    return tuple(differences)
