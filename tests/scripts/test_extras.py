"""What comes with the packages: complete in a build, installed below a prefix, named by the launchers' folder."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import BIN, SECONDS

from pympsd.cli.extras import LINKS
from pympsd.commands.grammar.registry import COMMANDS

ROOT = Path(__file__).parents[2]
COMPLETED = ("pympsd", "nvidia-cuda-mps-control", "pympsd-smi", "pympsd-run")
EXPECTED = (
    "share/man/man1/pympsd.1",
    "share/man/man1/pympsd-run.1",
    "share/man/man1/pympsd-smi.1",
    "share/man/man1/nvidia-cuda-mps-control.1",
    *(f"share/bash-completion/completions/{name}" for name in COMPLETED),
    *(f"share/fish/vendor_completions.d/{name}.fish" for name in COMPLETED),
    "share/zsh/site-functions/_pympsd",
    "lib/systemd/system/pympsd.service",
    "lib/systemd/system/pympsd-drain.service",
    "lib/systemd/user/pympsd.service",
    "etc/profile.d/pympsd.sh",
    "share/pympsd/examples/add_one.ptx",
    "share/pympsd/examples/two_processes.py",
    "share/pympsd/samples/pympsd.logrotate",
    "share/pympsd/samples/machine.toml",
    "share/pympsd/samples/Containerfile",
    "share/pympsd/samples/compose.yaml",
    "share/pympsd/samples/kubernetes.yaml",
    "share/pympsd/grafana/pympsd.json",
    "share/pympsd/pbs/prologue",
    "share/pympsd/slurm/prolog",
)


def pympsd(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "pympsd", *map(str, words)], capture_output=True, text=True, timeout=SECONDS)


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prefix below which the extras were installed."""
    folder = tmp_path_factory.mktemp("prefix") / "below"
    done = pympsd("--install-extras", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert {str(Path(line).relative_to(folder)) for line in done.stdout.splitlines()} == files(folder)
    return folder


def test_a_build_has_what_an_installation_has(tmp_path: Path, prefix: Path) -> None:
    pytest.importorskip("setuptools")  # of an environment with it; .ci/run builds a whole wheel
    for name in ("pympsd", "docs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (tmp_path / "setup.py").write_text(
        "from setuptools import find_packages, setup\nfrom scripts.build_extras import BuildExtras\n"
        "packages = find_packages(include=['pympsd', 'pympsd.*'])\n"
        "setup(name='x', packages=packages, cmdclass={'build_py': BuildExtras})\n"
    )
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "built/pympsd/_extras") == files(prefix)
    assert files(prefix).issuperset(EXPECTED)
    # pip compiles what it installs.
    assert compileall.compile_dir(tmp_path / "built", quiet=2)
    install = (
        "from pathlib import Path as P; from pympsd.cli import extras; extras.install(P('below'), P('/opt/bin'))"
    )
    subprocess.run([sys.executable, "-P", "-c", install], cwd=tmp_path, env={"PYTHONPATH": "built"}, check=True)
    assert files(tmp_path / "below") == files(prefix)
    assert "ExecStart=/opt/bin/pympsd -f" in (tmp_path / "below/lib/systemd/system/pympsd.service").read_text()


def test_units_name_the_launchers(prefix: Path) -> None:
    for scope in ("system", "user"):
        assert f"ExecStart={BIN}/pympsd -f" in (prefix / f"lib/systemd/{scope}/pympsd.service").read_text()


def test_programs_stay_programs(prefix: Path) -> None:
    assert os.access(prefix / "share/pympsd/pbs/prologue", os.X_OK)
    assert os.access(prefix / "share/pympsd/slurm/task-prolog", os.X_OK)


@pytest.mark.parametrize("option", ["--install-extras", "--link-nvidia-names"])
def test_an_impossible_place_is_reported(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    done = pympsd(option, tmp_path / "file")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "file") in done.stderr
    done = pympsd(option)
    assert (done.returncode, done.stderr.startswith(f"{option} needs a folder")) == (2, True)
    assert pympsd(option, tmp_path, "ps").returncode == 2


def test_the_vendors_names_are_links_and_replace_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        assert pympsd("--link-nvidia-names", tmp_path).returncode == 0
    assert {name: str((tmp_path / name).readlink()) for name in LINKS} == {
        name: str(BIN / launcher) for name, launcher in LINKS.items()
    }
    (tmp_path / "nvidia-smi").unlink()
    (tmp_path / "nvidia-smi").write_text("the vendor's")
    done = pympsd("--link-nvidia-names", tmp_path)
    assert (done.returncode, "nvidia-smi is there, and no link" in done.stderr) == (1, True)
    assert (tmp_path / "nvidia-smi").read_text() == "the vendor's"


def test_the_folder_of_the_vendors_names_is_made(tmp_path: Path) -> None:
    assert pympsd("--link-nvidia-names", tmp_path / "mps/bin").returncode == 0
    assert sorted(os.listdir(tmp_path / "mps/bin")) == sorted(LINKS)


def test_links_to_other_programs_stay(tmp_path: Path) -> None:
    (tmp_path / "nvidia-cuda-mps-control").symlink_to("/gone/bin/pympsd")
    (tmp_path / "nvidia-smi").symlink_to("/usr/lib/nvidia/nvidia-smi")
    done = pympsd("--link-nvidia-names", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"{tmp_path}/nvidia-smi is there, and leads to /usr/lib/nvidia/nvidia-smi, not to pympsd-smi" in done.stderr
    )
    assert sorted(os.listdir(tmp_path)) == ["nvidia-cuda-mps-control", "nvidia-smi"], "nothing is done by half"
    (tmp_path / "nvidia-smi").unlink()
    assert pympsd("--link-nvidia-names", tmp_path).returncode == 0
    assert (tmp_path / "nvidia-cuda-mps-control").readlink() == BIN / "pympsd", "of an installation that is gone"


def test_what_differs_is_put_aside_and_links_are_not_followed(prefix: Path, tmp_path: Path) -> None:
    shutil.copytree(prefix, tmp_path / "p")
    unit = tmp_path / "p/lib/systemd/system/pympsd.service"
    page = tmp_path / "p/share/man/man1/pympsd.1"
    unit.write_text("edited")
    other = tmp_path / "other"
    page.unlink()
    page.symlink_to(other)
    other.write_text("somebody's")
    done = pympsd("--install-extras", tmp_path / "p")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "(" in line]
    assert sorted(lines) == [f"{file} (what was there before is now {file}.~1~)" for file in (unit, page)]
    assert unit.with_name("pympsd.service.~1~").read_text() == "edited"
    assert (other.read_text(), page.is_symlink()) == ("somebody's", False)
    assert {unit.read_bytes(), page.read_bytes()} == {
        (prefix / file.relative_to(tmp_path / "p")).read_bytes() for file in (unit, page)
    }
    unit.write_text("again")
    assert "is now" in pympsd("--install-extras", tmp_path / "p").stdout
    assert unit.with_name("pympsd.service.~1~").read_text() == "edited"
    assert "is now" not in pympsd("--install-extras", tmp_path / "p").stdout


def test_the_commands_that_take_a_server() -> None:
    assert {name for name, command in COMMANDS.items() if command.names_server} == {
        "device_query", "get_active_thread_percentage", "get_client_list", "get_device_client_list",
        "get_device_pinned_mem_limit", "get_server_status", "ps", "set_active_thread_percentage",
        "set_device_pinned_mem_limit", "shutdown_server", "terminate_client",
    }  # fmt: skip
