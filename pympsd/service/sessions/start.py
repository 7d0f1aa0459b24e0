"""The configuration file that a daemon applies at its start, as an operator would."""

import os
import sys

import trio
from attrs import define, field

from pympsd.service.dispatcher import Dispatcher
from pympsd.service.sessions.waiting import wait_first
from pympsd.vocabulary.answers import Answer


@define
class _StartingOperator:
    """Waits for one answer."""

    answers: list[Answer] = field(factory=list)
    answered: trio.Event = field(factory=trio.Event)

    def working(self) -> None:
        """Do nothing: no operator waits."""

    def note(self, text: str, is_output: bool) -> None:
        """Do nothing: a configuration file has no words that are left out."""

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.answered.set()

    async def drain(self) -> None:
        """Do nothing: nothing is sent."""


async def apply_configuration(dispatcher: Dispatcher, path: str, text: bytes) -> None:
    """Apply a file as `config apply` does, and return when that is answered; write what failed to standard error."""
    operator = _StartingOperator()
    session = dispatcher.ids.take()
    dispatcher.operators[session] = operator
    try:
        await dispatcher.feed_line(session, os.geteuid(), os.fsencode(f"config apply {path}"), text)
        await wait_first(operator.answered.wait, dispatcher.done.wait)
    finally:
        del dispatcher.operators[session]
    for answer in operator.answers:
        if answer.refused:
            sys.stderr.write(f"{answer.printed}{answer.diagnostic}\n")
