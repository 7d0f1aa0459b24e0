"""Manual pages as Markdown: the macros of man(7) that docs/man uses, and an error for any other."""

import html
import re

FONTS = {"B": "strong", "I": "em"}
ESCAPES = {r"\-": "-", r"\c": "", r"\&": "", r"\e": "\\"}
FONT = re.compile(r"\\f([BIRP])")
WORD = re.compile(r'"([^"]*)"|(\S+)')


class UnknownMacro(ValueError):
    """A manual page has a macro that is not known here."""


def markdown(page):
    """Return a manual page as Markdown with lists in HTML; "" if it only includes another page.

    >>> print(markdown('.TH A 1\\n.SH OPTIONS\\n.TP\\n.B \\\\-a\\nall\\n'))
    # A(1)
    <BLANKLINE>
    ## OPTIONS
    <BLANKLINE>
    <dl><dt><strong>-a</strong></dt><dd>all</dd></dl>
    <BLANKLINE>
    """
    if page.startswith(".so "):
        return ""
    title, blocks, lines = "", [], iter(page.splitlines())
    for line in lines:
        macro, _, rest = line.partition(" ")
        if macro == ".TH":
            name, section = [quoted or bare for quoted, bare in WORD.findall(rest)][:2]
            title = f"# {_plain(name).lower() if name.isupper() and len(name) > 1 else _plain(name)}({section})"
        elif macro == ".SH":
            blocks.append(f"## {_plain(rest)}")
        elif macro == ".TP":
            blocks.append(["<dt>", _inline(next(lines)), "</dt><dd>"])
        elif macro == ".PP":
            blocks.append([])
        elif macro == ".nf":
            code = []
            while (line := next(lines)) != ".fi":
                code.append(html.escape(_plain(FONT.sub("", line.removeprefix(".B ")))))
            blocks.append(["<pre><code>", "\n".join(code), "</code></pre>"])
            blocks.append([])
        elif macro == ".br":
            _open(blocks).append("<br>")
        else:
            _open(blocks).append(_inline(line))
    return "\n\n".join([title, *_groups(blocks)]) + "\n"


def _open(blocks):
    """Return the block that text is added to."""
    if not blocks or isinstance(blocks[-1], str):
        blocks.append([])
    return blocks[-1]


def _groups(blocks):
    """Return the Markdown of blocks; the items of a list are together."""
    items = []
    for block in [*blocks, ""]:
        is_item = isinstance(block, list) and block[:1] == ["<dt>"]
        if items and not is_item:
            yield f"<dl>{''.join(items)}</dl>"
            items = []
        if is_item:
            term, rest = block[1], " ".join(block[3:])
            items.append(f"<dt>{term}</dt><dd>{rest}</dd>")
        elif isinstance(block, str):
            if block:
                yield block
        elif block[:1] == ["<pre><code>"]:
            yield "".join(block)
        elif block:
            yield f"<p>{' '.join(block)}</p>"


def _inline(line):
    """Return a line of text or of a font macro as HTML."""
    if not line.startswith("."):
        return _fonts(line)
    macro, _, rest = line[1:].partition(" ")
    if not macro or set(macro) - {*FONTS, "R"}:
        raise UnknownMacro(f"scripts/site/manual_page.py does not know the macro of {line!r}")
    if len(macro) == 1:
        return _in_font(macro, _fonts(rest.replace('"', "")))
    words = [quoted or bare for quoted, bare in WORD.findall(rest)]
    return "".join(_in_font(macro[index % 2], _fonts(word)) for index, word in enumerate(words))


def _fonts(text):
    r"""Return a text with its \f escapes as HTML."""
    parts = FONT.split(text)
    pieces = [html.escape(_plain(parts[0]))]
    for font, part in zip(parts[1::2], parts[2::2], strict=True):
        pieces.append(_in_font(font, html.escape(_plain(part))))
    return "".join(pieces)


def _in_font(font, text):
    tag = FONTS.get(font)
    return f"<{tag}>{text}</{tag}>" if tag and text else text


def _plain(text):
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text
