"""Ray tasks and actors that have a share of a GPU: a decorator.

An example::

    @ray.remote(num_gpus=0.25, max_calls=1)
    @gpu_share
    def train(): ...

Ray chooses the device; the share of it is a percentage of its SMs and of its memory. A process keeps its share
until it ends: tasks need ``max_calls=1``, unless all tasks of a worker have the same one. An actor has its own
process.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import ray

from pympsd.clusters.share import BadShare, daemon_devices, share_of, take

T = TypeVar("T", bound=Callable[..., Any])


def gpu_share(function: T) -> T:
    """Make a Ray task or actor take its share of a GPU before anything else runs in it.

    Args:
        function: The function of a task, or the class of an actor; write ``@gpu_share`` below ``@ray.remote``.

    The task or actor raises `BadShare` if its worker cannot have the share.
    """
    if isinstance(function, type):
        started: T = _take_share_at_start(function)
        return started

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        take_share()
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def take_share() -> None:
    """Give this worker process the share that Ray has assigned to its task or actor.

    Raises:
        BadShare: No GPU is assigned, the daemon does not have that GPU, or the process has another share already.
        CannotAsk: No daemon runs on this machine.
    """
    context: Any = ray.get_runtime_context()
    requested = float(context.get_assigned_resources().get("GPU", 0))
    if not requested:
        raise BadShare("this task has no GPU: ask for a part of one with num_gpus=0.25")
    devices = {str(device.ordinal): device for device in daemon_devices()}
    names = context.get_accelerator_ids().get("GPU", [])
    if unknown := [name for name in names if name not in devices]:
        raise BadShare(f"Ray assigned GPU {', '.join(unknown)}, and the daemon has {', '.join(devices)}")
    take(share_of([devices[name] for name in names], requested))


def _take_share_at_start(actor: Any) -> Any:
    class WithShare(actor):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            take_share()
            super().__init__(*arguments, **keywords)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(WithShare, name, getattr(actor, name))
    return WithShare
