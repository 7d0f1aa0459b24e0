"""The text of a module without the bodies of its functions, which are parsed when they are needed.

Loading a module must not read all of it. A library of 26 MB has a thousand kernels, of which a program launches a
few, and the parser reads 2 MB a second. What a load does need is little: the names of the kernels, the variables of
the module, and whether the text is one whole. So the text is first cut in two:

    .visible .entry scale(.param .u64 x)        .visible .entry scale(.param .u64 x)
    {                                     ──▶   \\0 0 \\0                    FunctionText("{ ... }", line 2)
        ...                                     .global .b8 t[2] = {1, 2};
    }
    .global .b8 t[2] = {1, 2};

`set_aside` needs a single pass of one regular expression, which looks at braces only, and at strings and comments
because they may contain braces. It takes out what is in braces at the top of the module, except initial values, and
leaves a mark with the body's number and as many newlines, so that the lines of all other tokens stay right. Tokens of
a body know their lines, too: an error has the same message whenever it is found.

What is not closed is left in the text, for the parser to report; a string or a comment that is not closed ends with
its line or the text, so that the pass takes linear time. A mark is a NUL, which no image contains inside.
"""

import re
from typing import Final

from pympsd_server.backends.emulated.ptx.syntax.tree import FunctionText

_EVENT: Final = re.compile(
    r'[{}]|"(?:[^"\\\n]|\\.)*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)|(?:\#[ \t]*(?:line[ \t]+)?\d|@@DWARF)[^\n]*', re.DOTALL
)


def set_aside(text: str) -> tuple[str, list[FunctionText]]:
    """Return a module's text with marks for the texts in braces, and these texts, in order."""
    parts: list[str] = []
    bodies: list[FunctionText] = []
    depth = start = done = at = 0
    line, before = 1, ""
    for match in _EVENT.finditer(text):
        event = match[0]
        if event == "{":
            if not depth:
                start = match.start()
                before = text[at:start].rstrip()[-1:] or before
            depth += 1
        elif event == "}" and depth:
            depth -= 1
            if not depth and before != "=":
                end = match.end()
                line += text.count("\n", done, start)
                body = FunctionText(text[start:end], line)
                newlines = text.count("\n", start, end)
                parts += [text[done:start], f"\0{len(bodies)}\0", "\n" * newlines]
                line += newlines
                bodies.append(body)
                done = end
        elif not depth:
            before = text[at : match.start()].rstrip()[-1:] or before
        if not depth:
            at = match.end()
    parts.append(text[done:])
    return "".join(parts), bodies
