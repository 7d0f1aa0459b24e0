"""The build id: what it depends on, in a checkout and where the packages were installed from a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pympsd.process import version

RECORD = """../../../bin/pympsd,sha256=SCRIPT,200
pympsd/__init__.py,sha256=aaaa,10
pympsd/__pycache__/__init__.cpython-312.pyc,,
pympsd_client/driver.py,sha256=bbbb,20
pympsd-0.2.0.dist-info/RECORD,,
other/__init__.py,sha256=OTHER,5
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the packages, with one file in each."""
    for package in version.PACKAGES:
        (tmp_path / package / "process").mkdir(parents=True)
        (tmp_path / package / "process" / "version.py").write_text(package)
    monkeypatch.setattr(version, "__file__", str(tmp_path / "pympsd" / "process" / "version.py"))
    return tmp_path


def build(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(version, "_build", [])
    return version.build_id()


def test_a_checkouts_id_changes_with_any_source(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build(monkeypatch)
    assert build(monkeypatch) == before
    (site / "pympsd_server" / "process" / "version.py").write_text("changed")
    assert build(monkeypatch) != before


def test_an_installations_id_needs_no_source(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = site / f"pympsd-{version.VERSION}.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(RECORD)
    before = build(monkeypatch)
    for package in version.PACKAGES:
        (site / package / "process" / "version.py").unlink()
    assert build(monkeypatch) == before
    record.write_text(RECORD.replace("SCRIPT", "of another environment").replace("OTHER", "changed"))
    assert build(monkeypatch) == before
    record.write_text(RECORD.replace("bbbb", "cccc"))
    assert build(monkeypatch) != before
