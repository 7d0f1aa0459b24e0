"""Parse variables, parameters and registers."""

from attrs import evolve

from pympsd_server.ptx.isa.datatypes import BITS_OF_TYPES, DTYPES, UNSUPPORTED_TYPES
from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.syntax.expressions import constant
from pympsd_server.ptx.syntax.tokens import TokenStream
from pympsd_server.ptx.syntax.tree import Immediate, Initialiser, Registers, Variable

SPACES = frozenset({"global", "shared", "const", "local", "param"})
_VECTORS = {".v2": 2, ".v4": 4}
_MAX_VECTOR_BYTES = 16
_BYTE_MASKS = {0xFF << shift: shift for shift in range(0, 64, 8)}


def check_type(name: str, line: int) -> str:
    """Return the type's name. Raises InvalidPtx if this device does not have the type."""
    if name not in DTYPES:
        kind = "unsupported" if name in UNSUPPORTED_TYPES or name in BITS_OF_TYPES else "unknown"
        raise InvalidPtx(f"{kind} type .{name}", line)
    return name


def parse_registers(tokens: TokenStream) -> Registers:
    """Parse a .reg directive. Raises InvalidPtx."""
    line = tokens.line
    tokens.expect(".reg")
    length, type_name = _register_type(tokens, line)
    names: list[str] = []
    while True:
        name = tokens.word("a register name")
        if tokens.accept("<"):
            count = tokens.integer()
            tokens.count_registers(count)
            names += [f"{name}{i}" for i in range(count)]
            tokens.expect(">")
        else:
            names.append(name)
        if not tokens.accept(","):
            break
    tokens.expect(";")
    return Registers(type_name, tuple(names), line, length)


def _register_type(tokens: TokenStream, line: int) -> tuple[int, str]:
    """Parse `.b32` or `.v4 .b32`; return the number of parts and their type. Raises InvalidPtx."""
    length = _VECTORS[tokens.take().text] if tokens.current.text in _VECTORS else 1
    type_name = tokens.take().text.lstrip(".")
    if type_name == "b128" and length == 1:
        return length, type_name
    check_type(type_name, line)
    if length > 1 and (type_name == "pred" or length * DTYPES[type_name].itemsize > _MAX_VECTOR_BYTES):
        why = f"vectors have at most {_MAX_VECTOR_BYTES} bytes, and no predicates"
        raise InvalidPtx(f"unsupported registers .v{length} .{type_name}: {why}", line)
    return length, type_name


def parse_variable(tokens: TokenStream, *, extern: bool = False) -> Variable:
    """Parse `.space [.align n] [.v4] .type name[n] = ...` up to the semicolon. Raises InvalidPtx."""
    line = tokens.line
    space = tokens.take().text[1:]
    if space == "reg":
        return _register_parameter(tokens, line)
    if space not in SPACES:
        raise InvalidPtx(f"unsupported state space or directive .{space}", line)
    alignment, elements, type_name, is_wide, managed = 0, 1, "", False, False
    while tokens.current.kind == "directive":
        text = tokens.take().text
        if text == ".align":
            alignment = tokens.integer()
        elif text in _VECTORS:
            elements = _VECTORS[text]
        elif text == ".attribute":
            managed |= _is_managed(tokens, space)
        elif text == ".ptr":
            _skip_pointer_attributes(tokens)
        elif text == ".b128":
            type_name, elements, is_wide = "b64", 2, True
        elif text[1:] not in SPACES:
            type_name = check_type(text[1:], line)
    if not type_name:
        raise tokens.error("a type")
    name = tokens.word("a variable name")
    size = DTYPES[type_name].itemsize * elements
    count = _dimensions(tokens)
    if is_wide and tokens.is_at("="):
        raise InvalidPtx("unsupported: initial values of type .b128", line)
    initial = _initialisers(tokens) if tokens.accept("=") else ()
    if count is None and initial:
        count = len(initial) // elements
    return Variable(name, space, type_name, alignment or size, size, count, extern, initial, line, managed)


def _is_managed(tokens: TokenStream, space: str) -> bool:
    """Parse `(.managed, .unified(...))`; return whether .managed is there. Raises InvalidPtx."""
    line, managed = tokens.line, False
    tokens.expect("(")
    while not tokens.accept(")"):
        if tokens.is_at(".managed") and space == "global":
            managed = True
        elif not tokens.is_at(".unified"):
            raise InvalidPtx(f"unsupported attribute {tokens.current.text} of a .{space} variable", line)
        if tokens.take().text == ".unified":
            tokens.skip_past(")")
        if not tokens.is_at(")"):
            tokens.expect(",")
    return managed


def _register_parameter(tokens: TokenStream, line: int) -> Variable:
    length, type_name = _register_type(tokens, line)
    size = DTYPES[type_name].itemsize
    return Variable(tokens.word("a register"), "reg", type_name, size, length * size, 1, False, (), line)


def _skip_pointer_attributes(tokens: TokenStream) -> None:
    while tokens.current.text[1:] in SPACES or tokens.is_at(".align"):
        if tokens.take().text == ".align":
            tokens.integer()


def _dimensions(tokens: TokenStream) -> int | None:
    count: int | None = 1
    while tokens.accept("["):
        if tokens.accept("]"):
            count = None
            continue
        length = tokens.integer()
        count = None if count is None else count * length
        tokens.expect("]")
    return count


def _initialisers(tokens: TokenStream) -> tuple[Initialiser, ...]:
    if not tokens.accept("{"):
        return (_initialiser(tokens),)
    values: list[Initialiser] = []
    while not tokens.accept("}"):
        values += _initialisers(tokens) if tokens.is_at("{") else (_initialiser(tokens),)
        if not tokens.is_at("}"):
            tokens.expect(",")
    return tuple(values)


def _initialiser(tokens: TokenStream) -> Initialiser:
    """Parse one initial value: a constant, an address plus a constant, or one byte of these. Raises InvalidPtx."""
    if tokens.current.kind != "word" or tokens.current.text == "WARP_SZ":
        if tokens.current.kind == "integer" and tokens.following.text == "(":
            line, mask = tokens.line, tokens.integer()
            if mask not in _BYTE_MASKS:
                raise InvalidPtx(
                    f"the mask {mask:#x} of an initialiser is not one byte, such as 0xff or 0xff00", line
                )
            tokens.expect("(")
            initialiser = _initialiser(tokens)
            tokens.expect(")")
            return evolve(initialiser, shift=_BYTE_MASKS[mask])
        return Initialiser(constant(tokens))
    symbol = tokens.take().text
    generic = symbol == "generic"
    if generic:
        tokens.expect("(")
        symbol = tokens.word("a variable name")
        tokens.expect(")")
    offset = constant(tokens) if tokens.is_at("+", "-") else Immediate(0)
    return Initialiser(offset, symbol, generic)


def parse_parameters(tokens: TokenStream) -> tuple[Variable, ...]:
    """Parse the parameters `(.param .b32 x, ...)` of a function. Raises InvalidPtx."""
    parameters: list[Variable] = []
    tokens.expect("(")
    while not tokens.accept(")"):
        parameters.append(parse_variable(tokens))
        if not tokens.is_at(")"):
            tokens.expect(",")
    return tuple(parameters)
