"""Commands of many parts: whatever the order in which their parts are answered, each command is answered once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.state_machine.decide import combine_answers
from pympsd.state_machine.instructions import Instruction, Reply, Working
from pympsd.state_machine.state.compound_commands import CompoundCommands
from pympsd.vocabulary.answers import Answer, refusal


def _replies(instructions: list[Instruction]) -> list[Reply]:
    return [instruction for instruction in instructions if isinstance(instruction, Reply)]


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_an_answer_comes_with_the_last_part(refusals: list[bool], random: st.randoms) -> None:  # type: ignore[valid-type]
    commands = CompoundCommands()
    command = commands.begin(7)
    sessions = [commands.add_part(command, f"part {number}") for number in range(len(refusals))]
    assert len(set(sessions)) == len(sessions)
    assert all(session < 0 for session in sessions)
    order = list(zip(sessions, refusals, strict=True))
    random.shuffle(order)  # type: ignore[attr-defined]
    for number, (session, is_refused) in enumerate(order):
        answer = refusal(f"refused {sessions.index(session)}", diagnostic="why") if is_refused else Answer()
        replies = _replies(list(combine_answers(commands, [Reply(session, answer), Reply(3, Answer())])))
        assert Reply(3, Answer()) in replies
        assert len(replies) == 1 + (number == len(order) - 1)
    (last,) = [reply for reply in replies if reply.session == 7]
    assert last.answer.refused == any(refusals)
    assert last.answer.printed.splitlines() == [
        f"{'refused' if is_refused else 'part'} {number}" for number, is_refused in enumerate(refusals)
    ]
    assert last.answer.diagnostic.count("why") == sum(refusals) == command.failed
    assert commands.pending == []


def test_an_operator_who_waits_learns_that_a_part_takes_its_time() -> None:
    commands = CompoundCommands()
    first, second = commands.begin(7), commands.begin(8)
    session = commands.add_part(first)
    commands.add_part(second)
    assert list(combine_answers(commands, [Working(session), Working(9)])) == [Working(7), Working(9)]


def test_a_command_without_parts_is_answered_immediately() -> None:
    commands = CompoundCommands()
    commands.add_text(commands.begin(7), "no change")
    (answer,) = [reply.answer for reply in _replies(list(combine_answers(commands, [])))]
    assert (answer.printed, answer.refused) == ("no change\n", False)


def test_a_command_answered_before_its_starts_still_counts_failed_starts() -> None:
    commands = CompoundCommands()
    command = commands.begin(7)
    command.waits_for_starts = False
    server, namespace = commands.add_part(command, "server"), commands.add_part(command)
    commands.mark_starting([server])
    assert _replies(list(combine_answers(commands, []))) == []
    assert len(_replies(list(combine_answers(commands, [Reply(namespace, Answer())])))) == 1
    assert command.pending == {server}
    assert _replies(list(combine_answers(commands, [Reply(server, refusal("too bad"))]))) == []
    assert (command.failed, command.pending, commands.pending) == (1, set(), [])
