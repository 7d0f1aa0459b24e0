"""Where the compilers' libraries are found that pympsd's own ones forward to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("pympsd_client.native._entry_points")
from pympsd_client.routing import forwarding

NAME = "libnvrtc.so.99"


def put(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / NAME).touch()
    return str(folder / NAME)


def test_the_places_of_a_library_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, active = tmp_path / "packages", tmp_path / "active"
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty [1]"), str(packages)])
    places = [
        put(tmp_path / "path"),
        put(tmp_path / "home/lib64"),
        put(tmp_path / "toolkit/lib"),
        put(packages / "nvidia/cuda_nvrtc/lib"),
        put(active / "lib/python3.12/site-packages/nvidia/cu13/lib"),
        put(tmp_path / "conda/lib"),
    ]
    environment = {
        "LD_LIBRARY_PATH": f"{tmp_path / 'nothing'}::{tmp_path / 'path'}",
        "CUDA_HOME": str(tmp_path / "home"),
        "CUDA_PATH": str(tmp_path / "toolkit"),
        "VIRTUAL_ENV": str(active),
        "CONDA_PREFIX": str(tmp_path / "conda"),
    }
    for place in places:
        assert forwarding.find(NAME, environment) == place
        Path(place).unlink()
    with pytest.raises(forwarding.NotInstalled, match=r"libnvrtc\.so\.99 is not installed.*CUDA_HOME"):
        forwarding.find(NAME, environment)


def test_pympsds_own_libraries_are_not_installed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    own = put(tmp_path / "env/pympsd_client/native/libraries")
    (tmp_path / "link").symlink_to(Path(own).parent)
    installed = put(tmp_path / "cuda")
    path = ":".join([str(Path(own).parent), str(tmp_path / "link"), str(tmp_path / "cuda")])
    assert forwarding.find(NAME, {"LD_LIBRARY_PATH": path}) == installed
