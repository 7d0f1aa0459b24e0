"""Two sides agree on the newest version that both support, or on none."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from pympsd.process.version import VERSION
from pympsd.wire.messages import NEWEST, OLDEST, Versions, agree
from pympsd.wire.records import OPERATIONS

RANGES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: Versions(min(ends), max(ends)))


@given(RANGES, RANGES)
def test_the_newest_common_version_is_agreed_on(ours: Versions, theirs: Versions) -> None:
    common = set(range(ours.oldest, ours.newest + 1)) & set(range(theirs.oldest, theirs.newest + 1))
    assert agree(ours, theirs) == (max(common) if common else None)
    assert agree(theirs, ours) == agree(ours, theirs)


@given(st.integers(), st.integers())
def test_an_empty_range_agrees_on_no_version_outside_it(oldest: int, newest: int) -> None:
    agreed = agree(Versions(), Versions(oldest, newest))
    assert agreed is None or (OLDEST <= agreed <= NEWEST and oldest <= agreed <= newest)


def test_this_build_agrees_with_itself_and_names_itself() -> None:
    assert agree(Versions(), Versions()) == NEWEST
    assert Versions().build == VERSION


def test_a_changed_record_has_a_new_version() -> None:
    """Whoever changes the layout of a record raises the version in messages.py, and writes both here."""
    layouts = [
        (
            operation.opcode,
            [(operand.name, operand.code) for operand in (*operation.operands, *operation.answers)],
            (len(operation.operands), operation.tail, operation.answer_tail, operation.answered, operation.brings_fd),
        )
        for operation in OPERATIONS
    ]
    assert (NEWEST, sha256(repr(sorted(layouts)).encode()).hexdigest()[:16]) == (3, "f74cc388be10c204")
