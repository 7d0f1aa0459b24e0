"""A Dask cluster of four workers with half a GPU each, one of which is killed; prints what they had.

A process of its own: Dask leaves threads and children behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from distributed import Client, LocalCluster

from pympsd.clusters.dask import GpuShare
from tests.clusters.worker_program import use_gpu

SECONDS = 60


def _results(client: Client, workers: list[str]) -> list[dict[str, Any]]:
    futures = [client.submit(use_gpu, workers=[worker], pure=False) for worker in workers]
    return [entry.result(timeout=SECONDS) for entry in futures]


def _workers(client: Client, without: str = "") -> list[str]:
    """Return the addresses of four workers, when there are so many that are not a dead one's."""
    give_up = time.monotonic() + SECONDS
    while len(workers := sorted(client.scheduler_info(n_workers=-1)["workers"])) < 4 or without in workers:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return workers


def main() -> None:
    """Run the cluster."""
    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, resources={"GPU": 0.5}, dashboard_address=None, silence_logs="ERROR"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(GpuShare())
        workers = _workers(client)
        results = _results(client, workers)
        os.kill(results[0]["pid"], signal.SIGKILL)
        again = _results(client, _workers(client, without=workers[0]))
    print(json.dumps([results, again]))


if __name__ == "__main__":
    main()
