"""Dask workers that have a share of a GPU: a plug-in for ``Client.register_plugin``.

An example::

    client.register_plugin(GpuShare())   # workers were started with --resources "GPU=0.25"

A worker that is killed gives its share back; the worker that its nanny starts instead gets a share again.
"""

from typing import Final

from distributed import Worker, WorkerPlugin

from pympsd.clusters.share import BadShare, daemon_devices, lock_part, share_of, take

RESOURCE: Final = "GPU"


class GpuShare(WorkerPlugin):
    """Gives each worker the share of its resource, before anything of CUDA runs in it.

    Workers with a fraction get that part of the first device with enough left. Workers with more than 1 get all
    devices of the daemon, whose number must be the same.
    """

    name = "pympsd-gpu-share"

    def __init__(self, resource: str = RESOURCE) -> None:
        self.resource = resource

    def setup(self, worker: Worker) -> None:
        """Give this worker its share. A worker that was started without the resource gets none.

        Raises:
            BadShare: The worker is a thread of another process, or no device has enough left.
            CannotAsk: No daemon runs on the worker's machine.
        """
        requested = float(worker.state.total_resources.get(self.resource, 0))
        if not requested:
            return
        if worker.nanny is None:
            raise BadShare("a share is for the life of a process: start workers with a nanny, as processes")
        devices = daemon_devices()
        take(share_of([lock_part(devices, requested)] if requested <= 1 else devices, requested))
