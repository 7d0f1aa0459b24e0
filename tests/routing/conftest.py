"""Programs of cuda.bindings, which know nothing of pympsd, run by pympsd-run under a daemon."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import BIN, SECONDS, DaemonProcess, daemon_of_session

Run = Callable[..., subprocess.CompletedProcess[str]]
RUN = str(BIN / "pympsd-run")
BEGINNING = """
import ctypes, os, sys
from cuda.bindings import driver as cuda

def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

def context():
    ok(cuda.cuInit(0))
    made = ok(cuda.cuDevicePrimaryCtxRetain(0))
    ok(cuda.cuCtxSetCurrent(made))
    return made

VECTOR_ADD = b'''
.version 7.0
.target sm_60
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<4>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.s32 %p1, %r4, %r5;
    @%p1 bra DONE;
    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c];
    mul.wide.s32 %d4, %r4, 4;
    add.u64 %d5, %d1, %d4; add.u64 %d6, %d2, %d4; add.u64 %d7, %d3, %d4;
    ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d7], %f3;
DONE: ret;
}
'''
"""


@pytest.fixture(scope="session")
def daemon() -> Iterator[DaemonProcess]:
    """A daemon for the programs of all tests here."""
    with daemon_of_session() as running:
        yield running


@pytest.fixture(scope="session")
def cuda_12() -> str:
    """The folder of cuda-bindings 12.9, for PYTHONPATH: installed once, next to this environment's own packages.

    Without an index to install it from its tests are skipped, but not in .ci/run.
    """
    home = Path(sys.prefix) / "cuda-bindings-12.9"
    if not home.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
            done = subprocess.run(
                [*pip, "--target", f"{folder}/packages", "cuda-bindings==12.9.*"],
                capture_output=True, text=True, timeout=10 * SECONDS, check=False,
            )  # fmt: skip
            if done.returncode:
                assert "PYMPSD_EVERY_TEST" not in os.environ, done.stderr
                pytest.skip("cuda-bindings 12.9 cannot be installed here")
            with contextlib.suppress(OSError):  # another worker was quicker
                Path(f"{folder}/packages").rename(home)
    return str(home)


@pytest.fixture
def run(daemon: DaemonProcess, tmp_path: Path) -> Run:
    """Run a program's text by pympsd-run and return what it printed; ``options`` are the interpreter's."""

    def run(
        text: str, *options: str, begin: str = BEGINNING, status: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(f"{begin}\n{text}")
        command = [RUN, sys.executable, *options, str(program)] if options else [RUN, str(program)]
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", **daemon.environment, **environment},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    return run
