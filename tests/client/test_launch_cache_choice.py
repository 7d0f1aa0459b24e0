"""Which launches a process has, native ones or Python's, and who chooses."""

from __future__ import annotations

import pytest

from tests.client.launch_cache_rig import _python
from tests.client.ring_area import extension

SAY = """
from pympsd_client import driver
from pympsd_client._command_stream import launch_cache
door = driver.cuLaunchKernel
print(launch_cache.is_native(), launch_cache.launcher() is not None, door.__name__, "Start a kernel" in door.__doc__)
"""
WITHOUT = "import sys; sys.modules['pympsd_client.native._launches'] = None\n"


def test_python_never_loads_the_extension() -> None:
    done = _python(
        SAY + "import sys; print(*[name for name in sys.modules if '_launches' in name])", PYMPSD_LAUNCHES="python"
    )
    assert (done.returncode, done.stdout) == (0, "False False cuLaunchKernel True\n\n"), done.stderr


INIT = """
from pympsd_client import driver, last_error
print(driver.cuInit(0)[0].name, last_error())
"""


@pytest.mark.parametrize("choice", [{}, *({"PYMPSD_LAUNCHES": given} for given in ("", "auto", "native"))], ids=str)
def test_native_is_what_there_is(choice: dict[str, str]) -> None:
    extension()
    done = _python(SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "True True cuLaunchKernel True\n"), done.stderr


@pytest.mark.parametrize("choice", [{}, {"PYMPSD_LAUNCHES": "auto"}], ids=str)
def test_without_the_extension_launches_are_pythons(choice: dict[str, str]) -> None:
    done = _python(WITHOUT + SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "False False cuLaunchKernel True\n"), done.stderr


def test_an_extension_that_was_asked_for_and_is_not_there_is_missed() -> None:
    done = _python(WITHOUT + INIT, PYMPSD_LAUNCHES="native")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CUDA_ERROR_NOT_SUPPORTED PYMPSD_LAUNCHES is native and launches are Python's here")
    assert "install pympsd where a C compiler and Python's headers are" in done.stdout


@pytest.mark.parametrize("choice", ["Native", "c", "python "])
def test_another_choice_is_refused_by_name_at_cuinit(choice: str) -> None:
    done = _python(INIT, PYMPSD_LAUNCHES=choice)
    said = f"CUDA_ERROR_INVALID_VALUE PYMPSD_LAUNCHES is {choice!r}: auto, native, python are allowed\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
