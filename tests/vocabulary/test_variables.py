"""The table of the settings: complete, and what it calls wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pympsd
import pympsd_client
import pympsd_server
from pympsd.vocabulary.variables import BY_NAME, VARIABLES, Reader, problems

PACKAGES = [Path(package.__path__[0]) for package in (pympsd, pympsd_client, pympsd_server)]
QUOTED = re.compile(r"""["']((?:PYMPSD|CUDA_MPS)_[A-Z_]*[A-Z])["']""")
INTERNAL = {"PYMPSD_ROUTING", "PYMPSD_RUN", "PYMPSD_PYTHON", "PYMPSD_LIBPYTHON"}
"""Set by pympsd-run for its children, and in its manual page."""


def test_every_variable_of_the_product_is_in_the_table() -> None:
    sources = [path.read_text() for package in PACKAGES for path in package.rglob("*.py")]
    assert {name for text in sources for name in QUOTED.findall(text)} - INTERNAL - BY_NAME.keys() == set()
    assert len(BY_NAME) == len(VARIABLES) > 25


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50%", "a number without a percent sign (pympsd reads 50), not '50%'"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0", "a number above 0, up to 100, not '0'"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "200", "a number above 0, up to 100, not '200'"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "33,3", "a number above 0, up to 100, not '33,3'"),
        ("CUDA_MPS_CLIENT_PRIORITY", "high", "0 (normal) or 1 (below normal), not 'high'"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1G", "DEVICE=LIMIT, as in 0=1G or GPU-...=512M"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0:1G", "DEVICE=LIMIT, as in 0=1G or GPU-...=512M"),
        (
            "CUDA_MPS_DEVICE_MEM_LIMIT",
            "0=1G,1=1T",
            "a limit is a whole number and G or M, or 0 for none, not '0=1G,1=",
        ),
        ("NVIDIA_GPU_MEMORY_LIMIT", "2G", "a whole number of MiB, not '2G'"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "33", "a number from 1 to 32, not '33'"),
        ("PYMPSD_DEVICE_CONNECTIONS", "99", "a number from 1 to 32, not '99'"),
        ("PYMPSD_STRICT_BOUNDS", "x", "0 or 1, not 'x'"),
        ("PYMPSD_KERNEL_CACHE", "cache", "the absolute path of a directory, or off, not 'cache'"),
        ("PYMPSD_EXPLAIN", "9", "0 or 1, not '9'"),
        ("PYMPSD_BACKEND", "gpu", "one of auto, vendor, cuda, emulated, not 'gpu'"),
        ("PYMPSD_TURN_PATIENCE", "30s", "a number of seconds, 0 or more, not '30s'"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(name: str, text: str, problem: str) -> None:
    explained = problems({name: text, "PYMPSD_USERS": "together", "OTHER": "x"})
    assert list(explained) == [name]
    assert explained[name].startswith(f"{name} must be ")
    assert problem in explained[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "12.5"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", " 1e1 "),
        ("CUDA_MPS_CLIENT_PRIORITY", "1"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G, GPU-77=512MB,1=0"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "2048"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "08"),
        ("PYMPSD_TURN_PATIENCE", "0.5"),
        ("CUDA_VISIBLE_DEVICES", "GPU-77"),
    ],
)
def test_valid_values_are_accepted(name: str, text: str) -> None:
    assert problems({name: text}) == {}


def test_the_readers_and_the_variables_that_are_looked_at() -> None:
    wrong = {"PYMPSD_USERS": "x", "PYMPSD_EXPLAIN": "x", "CUDA_MPS_CLIENT_PRIORITY": "x"}
    assert problems(wrong, Reader.DAEMON).keys() == {"PYMPSD_USERS", "CUDA_MPS_CLIENT_PRIORITY"}
    assert problems(wrong, Reader.CLIENT).keys() == {"PYMPSD_EXPLAIN", "CUDA_MPS_CLIENT_PRIORITY"}
    assert problems(wrong, Reader.CLIENT, but_for=["PYMPSD_EXPLAIN"]).keys() == {"CUDA_MPS_CLIENT_PRIORITY"}


@given(st.sampled_from(VARIABLES), st.text())
def test_any_text_is_valid_or_a_short_problem(variable: object, text: str) -> None:
    assert problems({variable.name: ""}) == {}  # type: ignore[attr-defined]
    (problem,) = problems({variable.name: text}).values() or [""]  # type: ignore[attr-defined]
    assert len(problem) < 1500
