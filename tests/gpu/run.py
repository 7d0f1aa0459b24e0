"""Run the tests that need a GPU, on this machine's GPU: see scripts/test-gpu.

They run against pympsd as it is installed, in a throw-away environment that every user of the machine can reach, for
servers run as their clients' users: made of links to what the given interpreter has. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import environment
import parts

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = "Run the tests that ask something of a GPU, on this machine's. Other arguments go to pytest."


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; unknown arguments are pytest's."""
    parser = argparse.ArgumentParser(prog="scripts/test-gpu", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--part", action="append", choices=sorted(parts.PARTS), help="only this one (may be repeated)"
    )
    parser.add_argument(
        # More are slower: contexts that are made at the same time hold each other up.
        "--jobs",
        type=int,
        default=min(4, os.cpu_count() or 1),
        help="processes of flows",
    )
    parser.add_argument(
        "--output", type=Path, help="a folder for what each part says, as it goes (default: a new one)"
    )
    parser.add_argument("--rehearse", action="store_true", help="on an emulated device that can no more than a GPU")
    return parser.parse_known_args()


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder that every user can reach, for as long as the tests run."""
    os.umask(0o022)
    path = Path(tempfile.mkdtemp(prefix="pympsd-test-gpu-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Make the environment, run the parts, print the results; return the exit status."""
    options, for_pytest = arguments()
    missing = environment.missing()
    if missing:
        sys.exit(f"{sys.executable} has no {', '.join(missing)}: install them, or name another in PYMPSD_PYTHON")
    # A run that is cut short still ends what it started and reports what failed until then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    parts.adopt_orphans()
    with workspace() as work, environment.awake():
        python = environment.make(ROOT, work)
        checkout = environment.copy_tests(ROOT, work)
        backend = "rehearsal" if options.rehearse else "cuda"
        if not options.rehearse:
            print(f"testing on {environment.gpu(python)}, workers: {environment.worker(python)}", flush=True)
        settings = {"PYMPSD_TEST_BACKEND": backend, "PYTHONPATH": str(checkout / "tests" / "support")}
        why_not = environment.why_no_other_users(python, options.rehearse)
        if why_not:
            print("tests with several users are left out:", why_not, flush=True)
            settings["PYMPSD_TEST_OTHER_USERS"] = "no"
        output = (options.output or Path(tempfile.mkdtemp(prefix="pympsd-test-gpu-output-"))).absolute()
        output.mkdir(parents=True, exist_ok=True)
        for part in parts.PARTS:
            (output / f"{part}.log").unlink(missing_ok=True)
        chosen = [part for part in parts.PARTS.values() if not options.part or part.name in options.part]
        runner = parts.Runner(python, checkout, output, work, settings, max(1, options.jobs), options.rehearse)
        print(f"whole output: {output}", flush=True)
        try:
            failed = runner.run(chosen, for_pytest)
        finally:
            leftovers = parts.end_remaining()
            for line in leftovers:
                print("left behind:", line)
    return 1 if failed or leftovers else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stdout or ''}{error.stderr or ''}")
