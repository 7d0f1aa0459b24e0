"""Protocol 3: a file of many servers and namespaces, the lists of them, and a client's way into a namespace."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import daemon
from timing import Report, median_seconds

SERVERS, NAMESPACES = 100, 10
READY_SECONDS = 120.0
"""The time in which all servers of the file are ready."""
CONNECTS = 15
CONNECT = """
import time
from pympsd_client import driver as cuda
start = time.perf_counter()
assert cuda.cuInit(0)[0] == 0
print(time.perf_counter() - start)
"""


def measure(report: Report) -> None:
    """Measure the daemon of protocol 3."""
    with daemon.running() as (plain, _), daemon.running(protocol=3) as (env, _):
        _apply(report, env)
        _list(report, env)
        _connect(report, plain, env)


def _apply(report: Report, env: dict[str, str]) -> None:
    directory = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
    file = directory / "many.toml"
    file.write_text(_many())
    start = time.perf_counter()
    subprocess.run([daemon.PYMPSD, "config", "apply", str(file)], env=env, capture_output=True, check=True)
    report.add(f"config apply: {SERVERS} servers of {NAMESPACES} namespaces", time.perf_counter() - start, 2, "s")
    give_up = start + READY_SECONDS
    while subprocess.run([daemon.PYMPSD, "config", "status"], env=env, stdout=subprocess.PIPE).returncode:
        if time.perf_counter() > give_up:
            raise TimeoutError(f"not all servers are ready after {READY_SECONDS:.0f} s")
        time.sleep(0.1)
    print(f"    (all ready after {time.perf_counter() - start:.1f} s)")
    pid = (directory / "nvidia-cuda-mps-control.pid").read_text()
    report.add("    the daemon's resident memory with all of them", daemon.resident_mib(pid), 80, "MiB")


def _list(report: Report, env: dict[str, str]) -> None:
    def run(*words: str, text: bytes = b"") -> None:
        subprocess.run([daemon.PYMPSD, *words], env=env, input=text, stdout=subprocess.PIPE, check=True)

    report.add("server list, of all of them", median_seconds(lambda: run("server", "list"), 20) * 1000, 100, "ms")
    taken = median_seconds(lambda: run("namespace", "list"), 20)
    report.add("namespace list, of all of them", taken * 1000, 100, "ms")
    run("config", "apply", _empty(env), "--prune", "--force")
    seconds = median_seconds(lambda: run("server", "list"), 60)
    report.add(
        "server list of none, against echo ps", seconds / median_seconds(lambda: run(text=b"ps\n"), 60), 1.2, "x"
    )


def _connect(report: Report, plain: dict[str, str], env: dict[str, str]) -> None:
    for words in (("server", "create", "s"), ("namespace", "create", "n", "--server=s")):
        subprocess.run([daemon.PYMPSD, *words], env=env, capture_output=True, check=True)
    inside = {**env, "CUDA_MPS_PIPE_DIRECTORY": f"{env['CUDA_MPS_PIPE_DIRECTORY']}/s/n"}
    _connected(plain)  # the first one starts the server
    pairs = [(_connected(inside), _connected(plain)) for _ in range(CONNECTS)]
    ratio = statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)
    report.add("cuInit in a namespace, against that at a daemon of protocol 2", ratio, 1.2, "x")


def _connected(env: dict[str, str]) -> float:
    return float(subprocess.run([sys.executable, "-c", CONNECT], env=env, stdout=subprocess.PIPE, check=True).stdout)


def _many() -> str:
    lines = ['schema_version = "1.0"']
    for server in range(SERVERS):
        lines += [f"[servers.s{server}]", 'active_thread_percentage = "90"']
        for namespace in range(NAMESPACES):
            lines += [f"[servers.s{server}.namespaces.n{namespace}]", 'pinned_memory_limit = "1G"']
    return "\n".join(lines)


def _empty(env: dict[str, str]) -> str:
    file = Path(env["CUDA_MPS_PIPE_DIRECTORY"], "empty.toml")
    file.write_text('schema_version = "1.0"\n')
    return str(file)
