"""Which workers a device's clients get, with and without the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import WORKER
from pympsd_server.backends.interface import BackendError
from pympsd_server.native import library as native
from pympsd_server.native import mirror
from pympsd_server.native.library import NoLibrary
from pympsd_server.native.mirror import Workers
from pympsd_server.native.states import SHARED_STATES
from tests.native.fake_driver import FakeDriver

REASON = "it was not built"


@frozen
class FakeDevice:
    """A device that a native worker reaches."""

    native: object


EMULATED: Any = object()
REAL: Any = FakeDevice(object())


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library usable."""
    monkeypatch.setattr(mirror, "library", lambda: object())


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library unusable."""

    def fail() -> None:
        raise NoLibrary(REASON)

    monkeypatch.setattr(mirror, "library", fail)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None, Any], Workers]:
    """Return a function that chooses for a value of the variable."""

    def choose(value: str | None, device: Any) -> Workers:
        monkeypatch.delenv(WORKER, raising=False)
        if value is not None:
            monkeypatch.setenv(WORKER, value)
        return Workers.choose(device)

    return choose


Choose = Callable[[str | None, Any], Workers]


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize("value", [None, "", "auto", "native"])
def test_a_gpus_clients_get_native_workers(choose: Choose, value: str | None) -> None:
    assert choose(value, REAL) == Workers(True, "native")


@pytest.mark.usefixtures("available")
def test_an_emulated_devices_clients_get_native_workers_on_request(choose: Choose) -> None:
    assert choose("native", EMULATED) == Workers(True, "")
    assert choose("auto", EMULATED) == choose(None, EMULATED) == Workers(False, "")


@pytest.mark.usefixtures("available")
def test_python_workers_are_reported_where_they_are_slower(choose: Choose) -> None:
    assert choose("python", REAL) == Workers(False, "python, because PYMPSD_WORKER requests it")
    assert choose("python", EMULATED) == Workers(False, "")


@pytest.mark.usefixtures("missing")
def test_without_the_library_python_workers_are_reported_with_the_reason(choose: Choose) -> None:
    assert choose("auto", REAL) == Workers(False, f"python, because the native one cannot be used: {REASON}")
    assert choose("auto", EMULATED) == Workers(False, "")
    assert not choose("python", REAL).native


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("device", [REAL, EMULATED], ids=["gpu", "emulated"])
def test_requested_native_workers_without_the_library_are_refused(choose: Choose, device: Any) -> None:
    with pytest.raises(BackendError, match=REASON) as caught:
        choose("native", device)
    assert caught.value.code is Result.ERROR_NOT_SUPPORTED


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize("value", ["Native", "c", "python "])
def test_an_invalid_value_is_refused_by_name(choose: Choose, value: str) -> None:
    with pytest.raises(BackendError, match="PYMPSD_WORKER must be one of auto, native, python, not") as caught:
        choose(value, REAL)
    assert caught.value.code is Result.ERROR_NOT_SUPPORTED
    assert repr(value) in caught.value.reason


# --- reasons why the library cannot be used


def _load_from(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    monkeypatch.setattr(native, "__file__", str(folder / "library.py"))
    return native.library.__wrapped__()


def test_a_library_that_was_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NoLibrary, match="the library was not built: install a C compiler, then pympsd again"):
        _load_from(monkeypatch, tmp_path)


def test_a_file_that_is_not_a_library_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"_worker{native.EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    with pytest.raises(NoLibrary, match="the library cannot be loaded: "):
        _load_from(monkeypatch, tmp_path)


def test_a_library_without_our_functions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: FakeDriver) -> None:
    (tmp_path / f"_worker{native.EXTENSION_SUFFIXES[0]}").symlink_to(driver.path)
    with pytest.raises(NoLibrary, match=r"the library cannot be loaded: .*worker_open"):
        _load_from(monkeypatch, tmp_path)


def test_a_library_of_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        @staticmethod
        def native_sizes(sizes: Any) -> None:
            for number, state in enumerate(SHARED_STATES.values()):
                sizes[number] = ctypes.sizeof(state) + 8

    with pytest.raises(NoLibrary, match=r"of another build, structures of .*: install pympsd again"):
        native._check_sizes(Other)
