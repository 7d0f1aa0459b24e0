"""Docstrings as Markdown: examples become blocks of code, names in backquotes and documents become links."""

import re

import griffe

EXAMPLE = re.compile(r"^ *>>> .*\n?(?:^ *\S.*\n?)*", re.MULTILINE)
LITERAL = re.compile(r"::\n\n")
FENCED = re.compile(r"(```pycon\n.*?\n```\n)", re.DOTALL)
DOCUMENT = re.compile(r"\bdocs/(\w+)\.md\b")
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


class Docstrings(griffe.Extension):
    """Rewrites each docstring before the page is made."""

    def on_object(self, *, obj, **_):
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, lambda name: _path(obj, name))

    def on_package(self, *, pkg, **_):
        """Rewrite the docstring of a package, which is not among the objects."""
        self.on_object(obj=pkg)


def markdown(text, path=str):
    """Return a docstring as Markdown; ``path`` returns the full name of a name, or "".

    >>> markdown("Add.\\n\\n>>> 1 + 1\\n2\\n")
    'Add.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    """
    if "```" in text:
        return text  # rewritten already
    text = EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
    parts = FENCED.split(text)
    parts[::2] = (_prose(part, path) for part in parts[::2])
    return "".join(parts)


def _prose(text, path):
    def link(match):
        full = path(match[1])
        reference = f'<autoref identifier="{full}" optional><code>{match[1]}</code></autoref>'
        return reference if full else match[0]

    text = DOCUMENT.sub(r"[\g<0>](../\1.md)", LITERAL.sub(":\n\n", text))
    return NAME.sub(link, text)


def _path(obj, name):
    """Return the full name of what an object's docstring calls by a name; "" if it is not a name of the code."""
    first, _, rest = name.partition(".")
    if name.startswith(("pympsd.", "pympsd_")):
        return name
    try:
        if first in obj.all_members:
            full = f"{obj.path}.{first}"
        else:
            full = obj.resolve(first)
    except (griffe.NameResolutionError, griffe.AliasResolutionError):
        return ""
    return f"{full}.{rest}" if rest else full
