"""The paths that documents name and link to exist, and the site's navigation has every document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:pympsd|pympsd_server|pympsd_client|scripts|tests|docs)/[\w/.*]+)`")
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
