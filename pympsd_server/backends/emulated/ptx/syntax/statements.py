"""Parsing of function bodies: instructions and their operands."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.datatypes import BITS_OF_TYPES, DTYPES, UNSUPPORTED_TYPES
from pympsd_server.backends.emulated.ptx.faults import InvalidPtx
from pympsd_server.backends.emulated.ptx.syntax.declarations import parse_parameters, parse_registers, parse_variable
from pympsd_server.backends.emulated.ptx.syntax.token_stream import TokenStream
from pympsd_server.backends.emulated.ptx.syntax.tree import (
    Address,
    Arguments,
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


def parse_body(tokens: TokenStream) -> tuple[Statement, ...]:
    """Return everything up to the matching `}`, which is consumed too."""
    statements: list[Statement] = []
    tokens.expect("{")
    while not tokens.accept("}"):
        statement = _statement(tokens)
        if statement is not None:
            statements.append(statement)
    return tuple(statements)


def _statement(tokens: TokenStream) -> Statement | None:
    token = tokens.current
    if token.text == "{":
        return Scope(parse_body(tokens))
    if token.kind == "directive":
        return _directive(tokens)
    if token.text == ";":
        tokens.take()
        return None
    if token.kind == "word" and tokens.following.text == ":":
        return _label(tokens)
    return _instruction(tokens)


def _directive(tokens: TokenStream) -> Statement | None:
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


def _label(tokens: TokenStream) -> Statement | None:
    name, line = tokens.take().text, tokens.line
    tokens.expect(":")
    if tokens.accept(".branchtargets"):
        labels = [tokens.word("a label")]
        while tokens.accept(","):
            labels.append(tokens.word("a label"))
        tokens.expect(";")
        return Targets(name, tuple(labels))
    if tokens.accept(".callprototype"):
        return _prototype(tokens, name)
    if tokens.accept(".calltargets"):
        functions = [tokens.word("a function")]
        while tokens.accept(","):
            functions.append(tokens.word("a function"))
        tokens.expect(";")
        return Prototype(name, (), (), tuple(functions))
    return Label(name, line)


def _prototype(tokens: TokenStream, name: str) -> Prototype:
    returns = parse_parameters(tokens) if tokens.is_at("(") else ()
    tokens.word("_")
    parameters = parse_parameters(tokens) if tokens.is_at("(") else ()
    tokens.accept(".noreturn")
    tokens.expect(";")
    return Prototype(name, returns, parameters)


def _instruction(tokens: TokenStream) -> Instruction:
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
        operands.append(_operand(tokens))
        if not tokens.is_at(";"):
            tokens.expect(",")
    return Instruction(name, modifiers, types, tuple(operands), guard, line)


def _operand(tokens: TokenStream) -> Operand:
    if tokens.is_at("["):
        return _address(tokens)
    if tokens.accept("{"):
        return Vector(_list(tokens, "}"))
    if tokens.accept("("):
        return Arguments(_list(tokens, ")"))
    if tokens.accept("!"):
        return Negated(Name(tokens.word("a predicate")))
    if tokens.is_at("-") and tokens.following.kind == "word":
        tokens.take()
        return Negative(Name(tokens.take().text))
    if tokens.current.kind != "word":
        return tokens.literal()
    name = Name(tokens.take().text)
    if tokens.accept("|"):
        return Pair(name, Name(tokens.word("a predicate")))
    if tokens.is_at("+", "-"):
        return Sum(name, _offset(tokens))
    return name


def _list(tokens: TokenStream, end: str) -> tuple[Operand, ...]:
    items: list[Operand] = []
    while not tokens.accept(end):
        items.append(_operand(tokens))
        if not tokens.is_at(end):
            tokens.expect(",")
    return tuple(items)


def _offset(tokens: TokenStream) -> int:
    if tokens.accept("+"):
        return tokens.integer()
    tokens.expect("-")
    return -tokens.integer()


def _address(tokens: TokenStream) -> Address | Vector:
    """Return `[address]`, or `[object, {coordinates}]` as a vector of all of them."""
    tokens.expect("[")
    base: Name | Immediate
    if tokens.current.kind == "word":
        base = Name(tokens.take().text)
    elif tokens.is_at("["):
        raise tokens.error("a register or a variable")
    else:
        base = tokens.literal()
    offset = _offset(tokens) if tokens.is_at("+", "-") else 0
    if tokens.accept(","):
        if not isinstance(base, Name) or offset:
            raise tokens.error("a texture, surface or tensor is a register")
        place = _operand(tokens)
        tokens.expect("]")
        return Vector((base, *(place.items if isinstance(place, Vector) else (place,))))
    tokens.expect("]")
    return Address(base, offset)
