"""The paths and names that documents give exist, links lead to files, and the navigation has every document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:pympsd|pympsd_server|pympsd_client|scripts|tests|docs)/[\w/.*]+)`")
NAME_IN_PATH = re.compile(
    r"`([A-Za-z_]\w*)`(?:, [^`.;]*| [a-z ]*)?(?: in| of| \(in|,? \() ?`([\w./]+/[\w./]*|\w+\.py)`"
)
"""A name, and the file or folder that a sentence says has it: "`combine` in `pympsd/vocabulary/limit_table.py`"."""
SITE_ONLY = re.compile(r"<!-- site: .*?-->", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)\s]*\)")
DOCUMENTS = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document: Path) -> None:
    links = LINK.findall(SITE_ONLY.sub("", document.read_text()))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_navigation_of_the_site_has_every_document() -> None:
    navigation = (ROOT / "scripts/site/mkdocs.yml").read_text()
    documents = {str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS if path.parent != ROOT}
    listed = {name for name in documents if re.search(rf"^ *- (.*: )?{re.escape(name)}$", navigation, re.MULTILINE)}
    assert {name for name in documents - listed if not name.startswith("decisions/")} == set()


@pytest.mark.parametrize("document", ["docs/tour.md", "CONTRIBUTING.md", "docs/glossary.md"])
def test_every_path_exists(document: str) -> None:
    paths = PATH.findall((ROOT / document).read_text())
    assert paths
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


def test_paths_of_the_tour_are_links() -> None:
    text = (ROOT / "docs/tour.md").read_text()
    assert [path for path in PATH.findall(text) if f"[`{path}`](../{path})" not in text] == []


@pytest.mark.parametrize("document", ["docs/tour.md", "CONTRIBUTING.md"])
def test_names_are_where_the_tour_and_the_recipes_say(document: str) -> None:
    text = " ".join((ROOT / document).read_text().split())
    pairs = NAME_IN_PATH.findall(re.sub(r"\[(`[^`]*`)\]\([^)]*\)", r"\1", text))
    assert len(pairs) >= 8
    assert [pair for pair in pairs if not _has_name(*pair)] == []


def _has_name(name: str, place: str) -> bool:
    """Return whether a file has a word, or one below a folder, or one of that name in any folder."""
    places = [ROOT / place] if "/" in place else list((ROOT / "pympsd_server").rglob(place))
    files = [file for path in places for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return any(re.search(rf"\b{re.escape(name)}\b", file.read_text()) for file in files)
