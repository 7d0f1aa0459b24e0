"""Parse a module's items. The bodies of its functions are parsed when they are needed (`parse_body`).

Loading a module must not parse all of it. A library of 26 MB has a thousand kernels, a program launches a few of
them, and the parser reads 2 MB a second. A load needs only the names of the kernels, the variables of the module, and
whether all braces are closed. So `set_aside` first divides the text in two:

    .visible .entry scale(.param .u64 x)        .visible .entry scale(.param .u64 x)
    {                                     ──▶   \\0 0 \\0                    FunctionText("{ ... }", line 2)
        ...                                     .global .b8 t[2] = {1, 2};
    }
    .global .b8 t[2] = {1, 2};

`set_aside` is a single pass of one regular expression. It looks only at braces, and at strings and comments because
they may contain braces. It takes out each outermost pair of braces with its contents, except initial values. In its
place it leaves a mark with the body's number and as many newlines as the body had, so all other tokens keep their
lines. A body's tokens have their lines of the image, too, so an error has the same message whenever it is found.

An unclosed brace stays in the text, and the parser reports it. An unclosed string ends with its line, and an unclosed
comment with the text, so the pass takes linear time. A mark is a number between two NULs, which an image cannot
contain.
"""

import re
from typing import Final

from pympsd.vocabulary.device_runtime import EMULATED, is_device_runtime, refusal
from pympsd_server.ptx.isa.faults import InvalidPtx, UnsupportedByMps
from pympsd_server.ptx.syntax.declarations import SPACES, parse_parameters, parse_variable
from pympsd_server.ptx.syntax.statements import parse_statements
from pympsd_server.ptx.syntax.tokens import TokenStream
from pympsd_server.ptx.syntax.tree import Function, FunctionText, Module, Statement, Target

_EVENT: Final = re.compile(  # every alternative begins with a fixed character, so re skips others five times faster
    r'\{|\}|"(?:[^"\\\n]|\\.)*+"?|/(?:/[^\n]*|\*.*?(?:\*/|\Z))|\#[ \t]*(?:line[ \t]+)?\d[^\n]*|@@DWARF[^\n]*',
    re.DOTALL,
)


def set_aside(text: str) -> tuple[str, list[FunctionText]]:
    """Return a module's text with marks in place of its functions' bodies, and the bodies in order."""
    parts: list[str] = []
    bodies: list[FunctionText] = []
    depth = start = copied = at = 0
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
                line += text.count("\n", copied, start)
                body = FunctionText(text[start:end], line)
                newlines = text.count("\n", start, end)
                parts += [text[copied:start], f"\0{len(bodies)}\0", "\n" * newlines]
                line += newlines
                bodies.append(body)
                copied = end
        elif not depth:
            before = text[at : match.start()].rstrip()[-1:] or before
        if not depth:
            at = match.end()
    parts.append(text[copied:])
    return "".join(parts), bodies


_LINKAGE = frozenset({".visible", ".extern", ".weak", ".common"})
_IGNORED_WITH_BRACES = frozenset({".section"})
_FUNCTION_DIRECTIVES = frozenset(
    {".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".reqnctapercluster", ".maxclusterrank"}
    | {".abi_preserve", ".abi_preserve_control"}
)
_NEXT_ITEM = frozenset({".entry", ".func", ".alias", ".file", ".loc", *_LINKAGE, *_IGNORED_WITH_BRACES})
_NEXT_ITEM |= {f".{space}" for space in SPACES}
"""The directives that begin an item of a module, and so end the declaration of a function before it."""

_TARGET = re.compile(r"sm_(\d{1,4})([af]?)")


def parse_module(text: str) -> Module:
    """Parse a PTX image except for the bodies of its functions. Raises InvalidPtx with the first error's line."""
    remaining_text, bodies = set_aside(text)
    tokens = TokenStream(remaining_text)
    module = Module()
    while tokens.current.kind != "end":
        _item(tokens, module, bodies)
    if module.version == (0, 0):
        raise InvalidPtx("the image does not begin with .version", 1)
    for function in module.functions.values():
        name = function.name
        if function.body is None and name not in EMULATED and is_device_runtime(name):
            raise UnsupportedByMps(refusal(function.name), function.line)
    return module


def parse_body(body: FunctionText) -> tuple[Statement, ...]:
    """Return the statements of a function's body. Raises InvalidPtx with the line of the first error."""
    return parse_statements(TokenStream(body.text, body.line))


def _item(tokens: TokenStream, module: Module, bodies: list[FunctionText]) -> None:
    """Parse one item: a directive of the module, a variable or a function. Raises InvalidPtx."""
    text = tokens.current.text
    if text == ".version":
        tokens.take()
        major, _, minor = tokens.take().text.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise tokens.error("a version such as 8.0")
        module.version = int(major), int(minor)
    elif text == ".target":
        tokens.take()
        module.target = _target(tokens)
    elif text == ".address_size":
        tokens.take()
        if tokens.integer() != 64:
            raise InvalidPtx("unsupported: .address_size other than 64", tokens.line)
    elif text in (".file", ".loc"):
        tokens.skip_line()
    elif text == ".pragma":
        tokens.skip_past(";")
    elif text in _IGNORED_WITH_BRACES:
        tokens.skip_past_body()
    elif tokens.current.kind == "directive":
        _definition(tokens, module, bodies)
    else:
        raise tokens.error("a directive")


def _target(tokens: TokenStream) -> Target:
    line = tokens.line
    name = tokens.word("a target")
    while tokens.accept(","):
        tokens.word("a target option")
    match = _TARGET.fullmatch(name)
    if match is None:
        raise InvalidPtx(f"unsupported .target {name}", line)
    return Target(int(match[1]), match[2], line)


def _definition(tokens: TokenStream, module: Module, bodies: list[FunctionText]) -> None:
    """Parse a function, an alias or a variable, with its linkage, and add it to the module. Raises InvalidPtx."""
    extern = False
    while tokens.current.text in _LINKAGE:
        extern |= tokens.take().text == ".extern"
    if tokens.is_at(".entry", ".func"):
        _add_function(module, _function(tokens, bodies))
        return
    if tokens.accept(".alias"):
        line = tokens.line
        name = tokens.word("the name of an alias")
        tokens.expect(",")
        function = module.functions.get(tokens.word("a function"))
        tokens.expect(";")
        if function is None or function.is_entry or function.body is None:
            raise InvalidPtx(f".alias {name}: the second name is not that of a function that is defined before", line)
        module.aliases[name] = function.name
        return
    if tokens.is_at(".tex", ".surf", ".sampler"):
        raise InvalidPtx(f"unsupported: {tokens.current.text}", tokens.line)
    variable = parse_variable(tokens, extern=extern)
    tokens.expect(";")
    earlier = module.variables.get(variable.name)
    if earlier is None or earlier.extern:
        module.variables[variable.name] = variable


def _add_function(module: Module, function: Function) -> None:
    earlier = module.functions.get(function.name)
    if earlier is None or earlier.body is None:
        module.functions[function.name] = function
    elif function.body is not None:
        raise InvalidPtx(f"{function.name} is defined twice", function.line)


def _function(tokens: TokenStream, bodies: list[FunctionText]) -> Function:
    """Parse a function's declaration and directives, and take its body from `bodies`. Raises InvalidPtx."""
    line = tokens.line
    is_entry = tokens.take().text == ".entry"
    while tokens.accept(".attribute"):
        tokens.skip_past(")")
    returns = parse_parameters(tokens) if tokens.is_at("(") else ()
    name = tokens.word("a function name")
    parameters = parse_parameters(tokens) if tokens.is_at("(") else ()
    function = Function(name, is_entry, returns, parameters, line)
    while tokens.current.kind == "directive" and tokens.current.text not in _NEXT_ITEM:
        text = tokens.take().text
        if text in _FUNCTION_DIRECTIVES:
            values = [tokens.integer()]
            while tokens.accept(","):
                values.append(tokens.integer())
            function.directives[text[1:]] = tuple(values)
        elif text == ".pragma":
            tokens.skip_past(";")
        elif text not in (".noreturn", ".explicitcluster"):
            raise InvalidPtx(f"unsupported function directive {text}", tokens.line)
    if tokens.current.kind == "body":
        function.body = bodies[int(tokens.take().text)]
    elif tokens.is_at("{"):
        parse_statements(tokens)  # reports an unclosed body, or an error in it that hides its end
        raise tokens.error("the end of the function")
    elif tokens.current.kind != "end" and tokens.current.text not in _NEXT_ITEM:  # nvopencc omits the semicolon
        tokens.expect(";")
    return function
