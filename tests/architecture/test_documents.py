"""The paths that the tour and the recipes name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:pympsd|pympsd_server|pympsd_client|scripts|tests|docs)/[\w/.*]+)`")


@pytest.mark.parametrize("document", ["docs/tour.md", "CONTRIBUTING.md", "docs/glossary.md"])
def test_every_path_exists(document: str) -> None:
    paths = PATH.findall((ROOT / document).read_text())
    assert paths
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


def test_paths_of_the_tour_are_links() -> None:
    text = (ROOT / "docs/tour.md").read_text()
    assert [path for path in PATH.findall(text) if f"[`{path}`](../{path})" not in text] == []
