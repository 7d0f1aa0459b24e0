"""Provisioning by example: two clients with half of the SMs each, and (for root) two users who take turns.

Starts daemons in a temporary directory on an emulated H200, and shows what docs/provisioning.md explains. Exit status
1 if anything differs from what it should be.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYMPSD = Path(sys.executable).parent / "pympsd"
SECONDS = 60
USERS = (10001, 10002)


def main():
    """Run the demonstration; return the exit status."""
    problems = halves()
    if os.geteuid() == 0:
        problems += turns()
    else:
        print("Two users taking turns: only root's daemon serves several users; run this as root to see it.")
    for problem in problems:
        print(f"WRONG: {problem}")
    print("The demonstration failed." if problems else "All was as it should be.")
    return 1 if problems else 0


def halves():
    """Two clients with an active thread percentage of 50 each run on different SMs."""
    print("== Two clients with 50 % each")
    with daemon() as environment:
        half = {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
        with clients(half, None, None) as (one, other):
            sms = [read_line(client) for client in (one, other)]
            print(f"Each client sees {sms[0]} and {sms[1]} of 132 SMs.")
            used = []
            for client in (one, other):
                tell(client)
                used.append(json.loads(read_line(client)))
                print(f"The blocks of process {client.pid} ran on SMs {spans(used[-1])}.")
    return ["the clients' SMs overlap"] if set(used[0]) & set(used[1]) or sms != ["66", "66"] else []


def turns():
    """A user's client waits exactly until another user's client, which came first, has ended."""
    print("== Two users take turns")
    with daemon() as environment, clients(environment, USERS[0]) as (one,):
        read_line(one)
        print_command("echo ps | pympsd", run_pympsd(environment, command="ps"))
        with clients(environment, USERS[1]) as (other,):
            while f"NEW CLIENT {other.pid} from user {USERS[1]}" not in log(environment):
                assert other.poll() is None
            print(f"User {USERS[1]} waits. Now the client of user {USERS[0]} leaves.")
            tell(one)
            tell(one)
            one.wait(SECONDS)
            read_line(other)
            listed = print_command("echo ps | pympsd", run_pympsd(environment, command="ps"))
            print_command("cat control.log", log(environment))
        return [] if str(other.pid) in listed.split() else ["the second user has no server"]


@contextmanager
def daemon():
    """Run a daemon on an emulated H200; yield its environment."""
    with tempfile.TemporaryDirectory(prefix="pympsd-demo-") as directory:
        os.chmod(directory, 0o755)
        environment = {
            **os.environ,
            "PYMPSD_BACKEND": "emulated",
            "PYMPSD_EMULATED_DEVICES": "H200",
            "CUDA_MPS_PIPE_DIRECTORY": f"{directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{directory}/log",
            "PYMPSD_REQUIRE_MPS": "1",
        }
        for folder in ("pipe", "log"):
            Path(directory, folder).mkdir()
        run_pympsd(environment, "-d")
        try:
            yield environment
        finally:
            run_pympsd(environment, command="quit -t 1")


@contextmanager
def clients(environment, *uids):
    """Run a client for each uid (None: this user)."""
    running = [
        subprocess.Popen(
            [sys.executable, HERE / "which_sms.py"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
        )
        for uid in uids
    ]
    try:
        yield running
    finally:
        for client in running:
            client.kill()
            client.communicate()


def spans(numbers):
    """Return numbers as their spans: 0-65, 70."""
    found = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in found)


def log(environment):
    """Return the content of control.log."""
    return Path(environment["CUDA_MPS_LOG_DIRECTORY"], "control.log").read_text()


def read_line(client):
    """Return the next line that a client prints."""
    line = client.stdout.readline().rstrip("\n")
    if not line:
        sys.exit(f"a client ended with status {client.wait(SECONDS)}")
    return line


def tell(client):
    """Let a client continue."""
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
