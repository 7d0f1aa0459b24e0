"""Two processes share one GPU through the daemon; scripts/demo runs this.

Starts a daemon in a temporary directory; two client processes run at the same time, one adds 1.0 to 1<<20 floats, the
other multiplies 1<<20 floats by 2.0; shows ps while both run and the two logs, and quits. Exit status 1 if anything
differs from what it should be.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYMPSD = Path(sys.executable).parent / "pympsd"
JOBS = (("add_one", 1.0, 2.0), ("times_two", 3.0, 6.0))
SECONDS = 60


def main():
    """Run the demonstration; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="pympsd-demo-") as directory:
        environment = {
            "PYMPSD_BACKEND": "emulated",
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": f"{directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{directory}/log",
            "PYMPSD_REQUIRE_MPS": "1",
        }
        for folder in ("pipe", "log"):
            Path(directory, folder).mkdir()
        print_command("pympsd -d", run_pympsd(environment, "-d"))
        try:
            problems = run_clients(environment)
        finally:
            print_command("echo quit | pympsd", run_pympsd(environment, command="quit"))
        for log in ("control.log", "server.log"):
            print_command(f"cat {log}", Path(directory, "log", log).read_text())
        problems += [
            f"{name} is still there"
            for name in ("log", "nvidia-cuda-mps-control.pid")
            if Path(directory, "pipe", name).exists()
        ]
    for problem in problems:
        print(f"WRONG: {problem}")
    print("The demonstration failed." if problems else "Both processes got the right results on one GPU.")
    return 1 if problems else 0


def run_clients(environment):
    """Run both clients at the same time; return the problems."""
    clients = [start_client(environment, *job) for job in JOBS]
    try:
        return accompany(environment, clients)
    finally:
        for client in clients:
            client.kill()
            client.wait()
            with suppress(BrokenPipeError):
                client.stdin.close()
            client.stdout.close()


def accompany(environment, clients):
    """Step both clients through their work, with ps in between."""
    for client in clients:
        read_line(client)  # ready
    for client in clients:
        tell(client)
    said = [read_line(client) for client in clients]
    listed = print_command("echo ps | pympsd", run_pympsd(environment, command="ps"))
    for client in clients:
        tell(client)
    problems = [f"a client ended with {status}" for client in clients if (status := client.wait(SECONDS))]
    for (kernel, _, _), line in zip(JOBS, said, strict=True):
        print(f"{kernel} {line}")
        if not line.startswith("done") or not line.rstrip().endswith(", 0 are wrong"):
            problems.append(f"{kernel}: {line or 'no answer'}")
    for client in clients:
        if str(client.pid) not in listed.split():
            problems.append(f"ps does not show process {client.pid}")
    return problems


def start_client(environment, kernel, start, expected):
    """Start one client process."""
    words = [sys.executable, HERE / "one_process.py", HERE / f"{kernel}.ptx", kernel, str(start), str(expected)]
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_line(client):
    """Return the next line that a client prints."""
    return client.stdout.readline().rstrip("\n")


def tell(client):
    """Let a client continue; one that has ended reports why in its exit status."""
    with suppress(BrokenPipeError):
        client.stdin.write("\n")
        client.stdin.flush()


def run_pympsd(environment, *options, command=""):
    """Run pympsd; return what it printed."""
    done = subprocess.run(
        [PYMPSD, *options], env=environment, input=command, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        sys.exit(f"pympsd {' '.join(options)}{command}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def print_command(what, text):
    """Print a command and its output; return the output."""
    print(f"$ {what}\n{text}", end="" if text.endswith("\n") or not text else "\n", flush=True)
    return text


if __name__ == "__main__":
    sys.exit(main())
