"""Parse function bodies: instructions and their operands."""

from pympsd_server.ptx.isa.datatypes import BITS_OF_TYPES, DTYPES, UNSUPPORTED_TYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.syntax.declarations import parse_parameters, parse_registers, parse_variable
from pympsd_server.ptx.syntax.expressions import constant, integer_constant, is_constant
from pympsd_server.ptx.syntax.tokens import TokenStream
from pympsd_server.ptx.syntax.tree import (
    Address,
    Arguments,
    Element,
    Guard,
    Immediate,
    Instruction,
    Label,
    Name,
    Negated,
    Negative,
    Operand,
    Pair,
    Prototype,
    Scope,
    Statement,
    Sum,
    Targets,
    Vector,
)

_LINE_DIRECTIVES = frozenset({".loc", ".file"})


def parse_statements(tokens: TokenStream) -> tuple[Statement, ...]:
    """Parse a body from its `{` to the matching `}`, and return the statements. Raises InvalidPtx."""
    statements: list[Statement] = []
    tokens.expect("{")
    while not tokens.accept("}"):
        statement = _statement(tokens)
        if statement is not None:
            statements.append(statement)
    return tuple(statements)


def _statement(tokens: TokenStream) -> Statement | None:
    """Parse one statement of a body; return None for one without a meaning here. Raises InvalidPtx."""
    token = tokens.current
    if token.text == "{":
        return Scope(parse_statements(tokens))
    if token.kind == "directive":
        text = tokens.current.text
        if text in _LINE_DIRECTIVES:
            tokens.skip_line()
            return None
        if text == ".pragma":
            tokens.skip_past(";")
            return None
        if text == ".reg":
            return parse_registers(tokens)
        variable = parse_variable(tokens)
        tokens.expect(";")
        return variable
    if token.text == ";":
        tokens.take()
        return None
    if token.kind == "word" and tokens.following.text == ":":
        return _label(tokens)
    return _instruction(tokens)


def _label(tokens: TokenStream) -> Statement | None:
    """Parse a label, or a list of targets or a prototype with a name. Raises InvalidPtx."""
    name, line = tokens.take().text, tokens.line
    tokens.expect(":")
    if tokens.accept(".branchtargets"):
        labels = [tokens.word("a label")]
        while tokens.accept(","):
            labels.append(tokens.word("a label"))
        tokens.expect(";")
        return Targets(name, tuple(labels))
    if tokens.accept(".callprototype"):
        returns = parse_parameters(tokens) if tokens.is_at("(") else ()
        tokens.word("_")
        parameters = parse_parameters(tokens) if tokens.is_at("(") else ()
        while not tokens.accept(";"):
            if tokens.is_at(".abi_preserve", ".abi_preserve_control"):  # how many registers the callee preserves
                tokens.take()
                tokens.integer()
            else:
                tokens.expect(".noreturn")
        return Prototype(name, returns, parameters)
    if tokens.accept(".calltargets"):
        functions = [tokens.word("a function")]
        while tokens.accept(","):
            functions.append(tokens.word("a function"))
        tokens.expect(";")
        return Prototype(name, (), (), tuple(functions))
    return Label(name, line)


def _instruction(tokens: TokenStream) -> Instruction:
    """Parse an instruction with its guard, suffixes and operands. Raises InvalidPtx."""
    line = tokens.line
    guard = None
    if tokens.accept("@"):
        negated = tokens.accept("!")
        guard = Guard(tokens.word("a predicate"), negated)
    name, *suffixes = tokens.word("an instruction").split(".")
    types = tuple(s for s in suffixes if s in DTYPES or s in BITS_OF_TYPES or s in UNSUPPORTED_TYPES)
    modifiers = tuple(s for s in suffixes if s not in types)
    for unsupported in [kind for kind in types if kind in UNSUPPORTED_TYPES]:
        why = f"type .{unsupported}: {UNSUPPORTED_TYPES[unsupported]}"
        raise InvalidPtx(f"unsupported: {'.'.join((name, *suffixes))} ({why})", line)
    operands: list[Operand] = []
    while not tokens.accept(";"):
        operands.append(_arguments(tokens) if name == "call" and tokens.is_at("(") else _operand(tokens))
        if not tokens.is_at(";"):
            tokens.expect(",")
    return Instruction(name, modifiers, types, tuple(operands), guard, line)


def _arguments(tokens: TokenStream) -> Arguments:
    tokens.expect("(")
    return Arguments(_list(tokens, ")"))


def _operand(tokens: TokenStream) -> Operand:
    """Parse one operand, except the parentheses of a call. Raises InvalidPtx."""
    if tokens.is_at("["):
        return _address(tokens)
    if tokens.accept("{"):
        return Vector(_list(tokens, "}"))
    if tokens.is_at("-") and tokens.following.kind == "word" and tokens.following.text != "WARP_SZ":
        tokens.take()
        return Negative(Name(tokens.take().text))
    if is_constant(tokens):
        return constant(tokens)
    if tokens.accept("!"):
        return Negated(Name(tokens.word("a predicate")))
    name = Name(tokens.word("an operand"))
    if tokens.accept("|"):
        return Pair(name, Name(tokens.word("a predicate")))
    if tokens.is_at("+", "-"):
        return Sum(name, integer_constant(tokens))
    return _element(tokens, name) if tokens.accept("[") else name


def _element(tokens: TokenStream, base: Name) -> Element:
    """Parse the rest of `base[2]`, `base[%r]` or `base[%r+1]` after the `[`."""
    index = None if is_constant(tokens) else Name(tokens.word("an index"))
    offset = integer_constant(tokens) if index is None or tokens.is_at("+", "-") else 0
    tokens.expect("]")
    return Element(base, index, offset)


def _list(tokens: TokenStream, end: str) -> tuple[Operand, ...]:
    items: list[Operand] = []
    while not tokens.accept(end):
        items.append(_operand(tokens))
        if not tokens.is_at(end):
            tokens.expect(",")
    return tuple(items)


def _address(tokens: TokenStream) -> Address | Vector:
    """Parse `[address]`, or `[object, {coordinates}]`, which becomes a vector of the object and its coordinates."""
    tokens.expect("[")
    base: Name | Immediate
    if is_constant(tokens):
        base, offset = constant(tokens), 0
    else:
        base = Name(tokens.word("a register or a variable"))
        offset = integer_constant(tokens) if tokens.is_at("+", "-") else 0
    if tokens.accept(","):
        if not isinstance(base, Name) or offset:
            raise tokens.error("a texture, surface or tensor is a register")
        place = _operand(tokens)
        tokens.expect("]")
        return Vector((base, *(place.items if isinstance(place, Vector) else (place,))))
    tokens.expect("]")
    return Address(base, offset)
