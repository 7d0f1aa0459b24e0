"""Commands of many parts: whatever the order in which their parts are answered, each command is answered once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.state_machine.instructions import Instruction, Reply, Working
from pympsd.state_machine.v3.gathering import Gatherings
from pympsd.vocabulary.answers import Answer, refusal


def _replies(instructions: list[Instruction]) -> list[Reply]:
    return [each for each in instructions if isinstance(each, Reply)]


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_an_answer_comes_with_the_last_part(outcomes: list[bool], random: st.randoms) -> None:  # type: ignore[valid-type]
    gatherings = Gatherings()
    gathering = gatherings.begin(7)
    sessions = [gatherings.part(gathering, f"part {number}") for number in range(len(outcomes))]
    assert len(set(sessions)) == len(sessions)
    assert all(session < 0 for session in sessions)
    order = list(zip(sessions, outcomes, strict=True))
    random.shuffle(order)  # type: ignore[attr-defined]
    for number, (session, is_refused) in enumerate(order):
        answer = refusal(f"refused {sessions.index(session)}", diagnostic="why") if is_refused else Answer()
        replies = _replies(list(gatherings.collect([Reply(session, answer), Reply(3, Answer())])))
        assert Reply(3, Answer()) in replies
        assert len(replies) == 1 + (number == len(order) - 1)
    (last,) = [reply for reply in replies if reply.session == 7]
    assert last.answer.refused == any(outcomes)
    assert last.answer.printed.splitlines() == [
        f"{'refused' if is_refused else 'part'} {number}" for number, is_refused in enumerate(outcomes)
    ]
    assert last.answer.diagnostic.count("why") == sum(outcomes) == gathering.failed
    assert gatherings.under_way == []


def test_who_waits_is_told_that_a_part_takes_its_time() -> None:
    gatherings = Gatherings()
    one, other = gatherings.begin(7), gatherings.begin(8)
    session = gatherings.part(one)
    gatherings.part(other)
    assert list(gatherings.collect([Working(session), Working(9)])) == [Working(7), Working(9)]


def test_a_command_without_parts_is_answered_at_once() -> None:
    gatherings = Gatherings()
    gatherings.say(gatherings.begin(7), "no change")
    (answer,) = [reply.answer for reply in _replies(list(gatherings.collect([])))]
    assert (answer.printed, answer.refused) == ("no change\n", False)


def test_a_command_that_does_not_await_starts_is_answered_before_them_and_still_counts_what_fails() -> None:
    gatherings = Gatherings()
    gathering = gatherings.begin(7)
    gathering.awaits_starts = False
    server, namespace = gatherings.part(gathering, "server"), gatherings.part(gathering)
    gatherings.starts([server])
    assert _replies(list(gatherings.collect([]))) == []
    assert len(_replies(list(gatherings.collect([Reply(namespace, Answer())])))) == 1
    assert gathering.waiting == {server}
    assert _replies(list(gatherings.collect([Reply(server, refusal("too bad"))]))) == []
    assert (gathering.failed, gathering.waiting, gatherings.under_way) == (1, set(), [])
