"""Pages of the site beyond docs/: other documents, manual pages, the Python reference; and the targets of links.

The documents are written for the repository's own pages. There a link may lead to a file of the code; on the site the
hook gives such a link DOCS_REPOSITORY as its root, or leaves its text alone. A link to a file that does not exist
stays, so that MkDocs reports it.
"""

import logging
import posixpath
import re
from pathlib import Path

import driver_page
import manual_page
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent
TOP_LEVEL = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
"""Pages by the documents outside docs/ that they show."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^][]|\[[^][]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MOVES = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
CELL = re.compile(r"<td.*?</td>")
NAME_CELL = re.compile(r"<td><code>[A-Za-z_]{12,}</code>")
SITE_ONLY = re.compile(r"<!-- site: (.*?) -->", re.DOTALL)
"""What the site shows and the repository's pages do not: links to pages that only the site has."""
log = logging.getLogger("mkdocs.hooks")


def on_config(config):
    """Put the decisions into the navigation."""
    decisions = sorted(path.name for path in Path(config.docs_dir, "decisions").glob("[0-9]*.md"))
    developers = next(part["Developers"] for part in config.nav if "Developers" in part)
    for entry in developers:
        if isinstance(entry, dict) and "Decisions" in entry:
            entry["Decisions"] = ["decisions/README.md", *(f"decisions/{name}" for name in decisions)]
    return config


def on_files(files, config):
    """Add the pages that are not in docs/."""
    for source, page in TOP_LEVEL.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted(Path(config.docs_dir, "man").glob("*.1")):
        if text := manual_page.markdown(path.read_text()):
            files.append(File.generated(config, f"man/{path.stem}.md", content=text))
    for path in sorted(SITE.glob("reference/*.md")):
        files.append(File.generated(config, f"reference/{path.name}", content=path.read_text()))
    files.append(File.generated(config, "reference/driver.md", content=driver_page.markdown()))
    files.append(File.generated(config, "style/site.css", content=(SITE / "style" / "site.css").read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Have links of a page lead to pages of the site, and show diagrams of states as tables."""
    path = page.file.src_uri
    source = next((name for name, shown in TOP_LEVEL.items() if shown == path), f"docs/{path}")
    markdown = SITE_ONLY.sub(r"\1", markdown)
    markdown = MOVES.sub(lambda match: _table_of_moves(match[1]), markdown)
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_with_links(markdown[end : fence.start()], source, page, config, files), fence[0]]
        end = fence.end()
    parts.append(_with_links(markdown[end:], source, page, config, files))
    return "".join(parts)


def on_page_content(content, page, config, files):
    """Let long names in tables break at underscores, and show an escaped bar in a table as a bar."""
    content = CELL.sub(lambda match: match[0].replace("\\|", "|"), content)
    return NAME_CELL.sub(lambda match: match[0].replace("_", "_<wbr>"), content)


def _with_links(text, source, page, config, files):
    def link(match):
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = _place(path, files)
        if place is not None:
            relative = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
            return f"{match['image']}[{match['text']}]({relative}{'#' if anchor else ''}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s: a link to %s, which does not exist", source, target)
            return match[0]
        return f"[{match['text']}]({config.repo_url}/blob/main/{path})" if config.repo_url else match["text"]

    return LINK.sub(link, text)


def _place(path, files):
    """Return the page or file of the site that shows a file of the repository; None if there is none."""
    if path in TOP_LEVEL:
        return TOP_LEVEL[path]
    if not path.startswith("docs/"):
        return None
    inside = path.removeprefix("docs/")
    if inside.startswith("man/"):
        inside = f"{inside.removesuffix('.1')}.md"
    return inside if files.get_file_from_path(inside) else None


def _table_of_moves(diagram):
    moves = {}
    for state, following in re.findall(r"^ *(\S+) --> (\S+)$", diagram, re.MULTILINE):
        moves.setdefault("(start)" if state == "[*]" else state, []).append(following)
    rows = [f"| {state} | {', '.join(following)} |" for state, following in moves.items()]
    return "\n".join(["| state | may be followed by |", "| --- | --- |", *rows, ""])
