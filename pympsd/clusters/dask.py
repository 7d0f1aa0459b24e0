"""Dask workers that have a share of a GPU: a plug-in for ``Client.register_plugin``.

>>> client.register_plugin(GpuShare())   # workers were started with --resources "GPU=0.25"

A worker that is killed gives its share back; the one that its nanny starts in its place gets one again.
"""

from __future__ import annotations

from typing import Final

from distributed import Worker, WorkerPlugin

from pympsd.clusters.share import BadShare, daemon_devices, lock_part, share_of, take

RESOURCE: Final = "GPU"


class GpuShare(WorkerPlugin):
    """Gives each worker the share of its resource, before anything of CUDA runs in it.

    Workers with a fraction get it of the first device with enough left; those with more than 1 all devices of
    the daemon, which have to be as many.
    """

    name = "pympsd-gpu-share"

    def __init__(self, resource: str = RESOURCE) -> None:
        self.resource = resource

    def setup(self, worker: Worker) -> None:
        """Take the share; a worker without the resource has none.

        Raise BadShare if the worker has no nanny, or no device has enough left.
        """
        requested = float(worker.state.total_resources.get(self.resource, 0))
        if not requested:
            return
        if worker.nanny is None:
            raise BadShare("a share is for the life of a process: start workers with a nanny, as processes")
        devices = daemon_devices()
        take(share_of([lock_part(devices, requested)] if requested <= 1 else devices, requested))
