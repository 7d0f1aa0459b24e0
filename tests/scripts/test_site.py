"""The site of scripts/docs: manual pages become pages, and what leads nowhere fails the build."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from processes import SECONDS

ROOT = Path(__file__).parents[2]
SITE = ROOT / "scripts" / "site"
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("pympsd", "pympsd_client", "pympsd_server", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def manual_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manual_page", SITE / "manual_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["pympsd", "pympsd-run", "pympsd-smi"])
def test_a_manual_page_becomes_a_page(manual_page: ModuleType, name: str) -> None:
    source = (ROOT / f"docs/man/{name}.1").read_text()
    page = manual_page.markdown(source)
    assert page.startswith(f"# {name}(1)\n")
    assert page.count("\n## ") == source.count("\n.SH ")
    assert page.count("<dt>") == source.count("\n.TP\n")
    assert "\\" not in page.replace("\\|", ""), "escapes of roff are gone"


def test_fonts_and_lists_of_a_manual_page(manual_page: ModuleType) -> None:
    page = manual_page.markdown(
        '.TH A\\-B 1 "" "x"\n.SH OPTIONS\n.TP\n.BR \\-\\-all " and " \\-a\nuse \\fBa\\fR < b\n'
        ".SH END\n.nf\nx  y\n.fi\n"
    )
    assert page == (
        "# a-b(1)\n\n## OPTIONS\n\n"
        "<dl><dt><strong>--all</strong> and <strong>-a</strong></dt><dd>use <strong>a</strong> &lt; b</dd></dl>\n\n"
        "## END\n\n<pre><code>x  y</code></pre>\n"
    )


def test_an_unknown_macro_of_a_manual_page_is_an_error(manual_page: ModuleType) -> None:
    with pytest.raises(manual_page.UnknownMacro, match="TS"):
        manual_page.markdown(".TH A 1\n.SH B\n.TS\n")


def test_a_manual_page_that_includes_another_renders_as_empty(manual_page: ModuleType) -> None:
    assert manual_page.markdown((ROOT / "docs/man/nvidia-cuda-mps-control.1").read_text()) == ""


@pytest.mark.long
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")  # of an environment with it; .ci/run builds the whole site
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(SITE, tmp_path / "scripts" / "site")
    for name in DOCUMENTS:
        shutil.copy(ROOT / name, tmp_path)
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    wrong = "\n[a](nowhere.md) [b](v3.md#nowhere) [c](../pympsd/nowhere.py)\n"
    with (tmp_path / "docs/glossary.md").open("a") as page:
        page.write(wrong)
    (tmp_path / "docs/orphan.md").write_text("# A page that the navigation does not have\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "scripts/site/mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 1
    for complaint in ("nowhere.md", "#nowhere", "../pympsd/nowhere.py", "orphan.md"):
        assert complaint in done.stderr
