"""The launchers work wherever pip puts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pympsd.process.version import VERSION

ROOT = Path(__file__).parents[2]
PTH = Path("pympsd_client/routing/pympsd-routing.pth")
PACKAGES = ("pympsd", "pympsd_server", "pympsd_client")
SECONDS = 60
LAYOUTS = ("venv", "prefix", "target", "user")
CASES = {
    "pympsd": (["-v"], VERSION),
    "pympsd-server": (["--version"], VERSION),
    "pympsd-smi": (["-L"], "GPU 0:"),
    "pympsd-run": (["-c", "import os; print('routed', os.environ['PYMPSD_ROUTING'])"], "routed 1"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of the packages and launchers, laid out as setuptools does; nothing is compiled."""
    path = tmp_path_factory.mktemp("wheel") / f"pympsd-{VERSION}-py3-none-any.whl"
    info, record = f"pympsd-{VERSION}.dist-info", []
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for file in (ROOT / package).rglob("*.py"):
                record.append(str(file.relative_to(ROOT)))
                archive.write(file, record[-1])
        archive.write(ROOT / PTH, PTH.name)
        record.append(PTH.name)
        for file in (ROOT / "scripts" / "launchers").iterdir():
            record.append(f"pympsd-{VERSION}.data/scripts/{file.name}")
            archive.write(file, record[-1])
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: pympsd\nVersion: {VERSION}\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        for name, text in texts.items():
            record.append(f"{info}/{name}")
            archive.writestr(record[-1], text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*record, f"{info}/RECORD"]))
    return path


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has what pympsd depends on, and not pympsd."""
    return _environment(tmp_path_factory.mktemp("interpreter"))


def _environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=SECONDS)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth files are not read
    return folder / "bin" / "python3"


@pytest.fixture(scope="module", params=LAYOUTS)
def bin_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path, interpreter: Path
) -> Path:
    """Return the folder where pip put the launchers."""
    folder = tmp_path_factory.mktemp(request.param) / "with space"
    python, environment = sys.executable, dict(os.environ)
    where = [f"--{request.param}"]
    match request.param:
        case "venv":
            _environment(folder)
            where = ["--prefix", str(folder)]  # as pip does with the Python of the environment, which has no pip
        case "user":  # which pip refuses in an environment
            python, environment["PYTHONUSERBASE"] = str(Path(sys.base_prefix, "bin", "python3")), str(folder)
            environment["PYTHONPATH"] = sysconfig.get_path("purelib")
            where.append("--break-system-packages")
        case _:
            where.append(str(folder))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", *where, str(wheel)],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.long(but=["venv-pympsd-link"])
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "link"])
@pytest.mark.parametrize("name", CASES)
def test_a_launcher_works_where_pip_puts_it(
    bin_folder: Path, interpreter: Path, tmp_path: Path, name: str, linked: bool
) -> None:
    arguments, output = CASES[name]
    launcher = bin_folder / name
    if linked:
        launcher = tmp_path / name
        launcher.symlink_to(bin_folder / name)
    environment = {"PATH": f"{interpreter.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [launcher, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert output in done.stdout


@pytest.mark.parametrize("options", [[], ["-m"]])
def test_programs_and_their_children_are_routed(
    bin_folder: Path, interpreter: Path, tmp_path: Path, options: list[str]
) -> None:
    module = tmp_path / "program.py"
    module.write_text("""
import subprocess, sys
asks = "import sys; print('pympsd_client.routing.hook' in sys.modules, *sys.argv[1:])"
exec(asks)
subprocess.run([sys.executable, "-c", asks, "child"], check=True)
import sitecustomize
print(sitecustomize.__name__, getattr(sitecustomize, "OWN", "none"))
""")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("OWN = 'own'\n")
    done = subprocess.run(
        [bin_folder / "pympsd-run", *options, "program" if options else "program.py", "argument"],
        cwd=tmp_path, env={"PATH": f"{interpreter.parent}:/usr/bin:/bin", "PYTHONPATH": str(own)},
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["True argument", "True child", "sitecustomize own"]


@pytest.mark.long(but=["user"])
def test_a_daemon_starts_and_ends_there(bin_folder: Path, interpreter: Path, tmp_path: Path) -> None:
    environment = {
        "PATH": f"{interpreter.parent}:/usr/bin:/bin",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
    }

    def run(*arguments: str) -> str:
        command = [bin_folder / "pympsd", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "pipe").mkdir()
    (tmp_path / "log").mkdir()
    run("-d")
    try:
        assert run("get_default_active_thread_percentage") == "100.0\n"
        run("start_server", "-uid", str(os.getuid()))  # the server finds its packages too
        assert run("get_server_list").strip().isdigit()
    finally:
        run("quit", "-t", "0")


def test_a_launcher_that_finds_no_interpreter_reports_it(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    done = subprocess.run(
        [shell, ROOT / "scripts" / "launchers" / "pympsd", "-v"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 127
    assert "python3" in done.stderr
