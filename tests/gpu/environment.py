"""The throw-away environment that the tests on a GPU run in: links to what an interpreter has, and pympsd."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = ("attrs", "cuda", "hypothesis", "msgspec", "numpy", "pytest", "pytest_trio", "structlog", "trio")
PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")
INSTALLED_FROM = (*PACKAGES, "scripts", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in")
TESTED_WITH = ("tests", "docs", "scripts", "pyproject.toml")
TEST_UID = 10001
"""The tests' own user."""
SECONDS = 120.0


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keep GPUs initialised, because a GPU whose file is not open takes a second or more to wake up."""
    with contextlib.ExitStack() as files:
        for path in Path("/dev").glob("nvidia[0-9]*"):
            with contextlib.suppress(OSError):
                files.enter_context(path.open("rb", buffering=0))
        yield


def missing() -> list[str]:
    """Return the packages that this interpreter lacks."""
    return [name for name in NEEDED if find_spec(name) is None]


def make(root: Path, work: Path) -> Path:
    """Make the environment in a folder; return its interpreter."""
    home = work / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", home])
    python = home / "bin" / "python3"
    site = Path(_run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    for folder in _sources():
        _link(folder, site)
    _install(root, work, python, site)
    return python


def _sources() -> list[Path]:
    """Return the folders of third-party packages that this interpreter has, the first found first."""
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parent)}
    folders = [Path(entry) for entry in sys.path if entry and entry not in own and os.path.isdir(entry)]
    return [folder for folder in folders if folder.name != "lib-dynload"]


def _link(source: Path, target: Path) -> None:
    """Link the contents of a folder; parts of one namespace package may come from several folders."""
    for entry in source.iterdir():
        if entry.name.startswith((*PACKAGES, "__editable__", "__pycache__")) or entry.suffix == ".pth":
            continue
        link = target / entry.name
        if not link.exists():
            link.symlink_to(entry.resolve())
        elif link.is_dir() and entry.is_dir() and not (entry / "__init__.py").exists():
            if link.is_symlink() and not (link / "__init__.py").exists():
                first = link.resolve()
                link.unlink()
                link.mkdir()
                _link(first, link)
            if not link.is_symlink():
                _link(entry, link)


def _install(root: Path, work: Path, python: Path, site: Path) -> None:
    """Install pympsd from a copy of its sources, with pip if it and setuptools exist."""
    source = work / "source"
    source.mkdir()
    _copy(root, source, INSTALLED_FROM)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", source], capture_output=True, text=True, timeout=10 * SECONDS
    )
    if done.returncode:
        print(f"pip could not install pympsd, so it is laid out as it is:\n{done.stderr.strip()[-1000:]}", flush=True)
        _copy(source, site, PACKAGES)
        for launcher in (source / "scripts" / "launchers").iterdir():
            shutil.copy(launcher, python.parent / launcher.name)


def copy_tests(root: Path, work: Path) -> Path:
    """Return a copy of the checkout without the packages, so that the tests use the installed ones."""
    checkout = work / "checkout"
    checkout.mkdir()
    _copy(root, checkout, TESTED_WITH)
    return checkout


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (source / name).exists():
            shutil.copy(source / name, target / name)


def gpu(python: Path) -> str:
    """Return the name and UUID of the first GPU that a daemon finds; exit with the reason if it finds none."""
    answer = _devices(python)
    if "devices" not in answer:
        sys.exit(f"there is no GPU to test on: {answer.get('error')}")
    first = answer["devices"][0]
    return f"{first['name']} {first['uuid']}"


def worker(python: Path) -> str:
    """Return which worker executes clients' records on a GPU, and why not the other."""
    text = "from pympsd_server.native.library import library; library()"
    done = subprocess.run([python, "-I", "-c", text], capture_output=True, text=True, timeout=SECONDS)
    chosen = os.environ.get("PYMPSD_WORKER", "auto")
    if done.returncode:
        return f"{chosen}; the native one cannot be used: {done.stderr.strip().rpartition(chr(10))[2]}"
    return f"{chosen}; the native one is there"


def why_no_other_users(python: Path, rehearse: bool) -> str:
    """Return why clients of other users cannot be tested here; nothing if they can."""
    if os.geteuid() != 0:
        return "only root starts processes of others"
    imports = "import attrs, cuda.bindings.driver, msgspec, numpy, structlog, trio, pympsd_client, pympsd_server"
    try:
        done = subprocess.run([python, "-I", "-c", imports], **_as_test_user(), timeout=SECONDS)
    except OSError as error:
        return f"user {TEST_UID} cannot reach this interpreter: {error.strerror}: {os.path.realpath(python)}"
    if done.returncode:
        return f"user {TEST_UID} cannot use this interpreter: {done.stderr.strip().rpartition(chr(10))[2]}"
    answer = {} if rehearse else _devices(python, **_as_test_user())
    return f"user {TEST_UID} cannot use the GPU: {answer['error']}" if "error" in answer else ""


def _devices(python: Path, **how: Any) -> dict[str, Any]:
    """Ask as the daemon does, with only the library paths of this environment."""
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    how = {"capture_output": True, "text": True, "cwd": "/", **how, "env": {**passed, "PYMPSD_BACKEND": "cuda"}}
    done = subprocess.run([python, "-I", "-m", "pympsd.devices"], timeout=SECONDS, **how)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.strip()[-1000:] or f"the question ended with status {done.returncode}"}
    return answer


def _as_test_user() -> dict[str, Any]:
    identity = {"user": TEST_UID, "group": TEST_UID, "extra_groups": []}
    return {**identity, "capture_output": True, "text": True, "cwd": "/", "env": {}}


def _run(command: list[Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
