"""A Ray cluster with actors and tasks that have parts of two GPUs; prints what they had. One actor is killed.

A process of its own: Ray leaves threads and children behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import ray

from pympsd.clusters.ray import gpu_share
from tests.clusters.worker_program import use_gpu


@ray.remote(num_gpus=0.5)
@gpu_share
class Worker:
    """An actor that uses its share."""

    def run(self) -> dict[str, Any]:
        """Use it."""
        return use_gpu()


def main() -> None:
    """Run the cluster."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ray.init(
        num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment}
    )
    workers: list[Any] = [Worker.remote() for _ in range(4)]  # type: ignore[attr-defined]
    results = ray.get([worker.run.remote() for worker in workers])
    os.kill(results[0]["pid"], signal.SIGKILL)
    another: Any = Worker.remote()  # type: ignore[attr-defined]
    again = ray.get(another.run.remote())
    del workers, another
    task = ray.remote(num_gpus=0.25, max_calls=1)(gpu_share(use_gpu))
    small = ray.get(task.remote())
    try:
        ray.get(ray.remote(gpu_share(use_gpu)).remote())
        refused = ""
    except ray.exceptions.RayTaskError as error:
        refused = str(error)
    ray.shutdown()
    print(json.dumps([results, again, small, refused]))


if __name__ == "__main__":
    main()
