"""Pending terminate_client commands: each is answered once, by its server, by its timeout or by its server's end.

The problem: ending a client's contexts takes as long as its kernels run; meanwhile the server may be stopped, may
end, or may answer after the operator's command has failed. And deleting a namespace or an SM partition terminates its
clients as a part of a larger command, which has an answer of its own.

The idea: every termination has an id that is never used again (the *token* of TerminateClient). Whichever comes first
of the server's answer, the TERMINATION timer and the server's end takes the termination out of the table and answers
its session; later ones find nothing. The server gives up after `SERVER_TIMEOUT` seconds; the daemon waits a little
longer, so that its own time limit ends only if the server is stopped.

Invariants:

- A session is answered exactly once; session 0 means that nobody waits for the answer.
- The answer of another server, or with a token that is not pending, is ignored.
- SM partitions of evicted clients stay occupied until nothing of the client runs any more (`OVER`): their chunks are
  given to nobody else while a kernel may still use them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve

from pympsd.state_machine import instructions as do
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon, Termination
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, lines, refusal
from pympsd.vocabulary.results import Result

SERVER_TIMEOUT: Final = 10.0
"""The seconds after which a server stops trying to terminate a client."""
TERMINATION_TIMEOUT: Final = 15.0
"""The seconds that the daemon waits for the server's answer, which comes earlier unless the server is stopped."""
RESET_TIMEOUT: Final = 30.0
"""The seconds that the daemon waits with --terminate-by-reset: the server then does not give up, but resets the
device."""
CAUSES: Final[dict[int, str]] = {
    Result.ERROR_INVALID_CONTEXT: (
        "the client has no active context on the server: its contexts were ended before, or it never had one"
    ),
    Result.ERROR_LAUNCH_TIMEOUT: (
        "a kernel of the client still runs, or the client's executor is stopped; a daemon with --terminate-by-reset "
        "would end the client with all work on the device"
    ),
    Result.ERROR_NOT_SUPPORTED: (
        "the client has created contexts since it was terminated, and keeps the terminated ones; the driver's server "
        "would hang on another request: end the client's process"
    ),
    Result.ERROR_MPS_RPC_FAILURE: "the server has ended, and the client's work with it",
}
"""The reasons why a client was not terminated, by the number that is printed; docs/operations.md lists the
remedies."""
OVER: Final = frozenset({0, Result.ERROR_INVALID_CONTEXT, Result.ERROR_MPS_RPC_FAILURE})
"""The results that mean that no work of the client runs any more."""


def begin(
    daemon: Daemon,
    session: int,
    server: Server,
    pid: int,
    answer: Answer | None = None,
    *,
    timeout: float | None = None,
    in_words: bool = False,
    evicted: tuple[int, ...] = (),
    is_drain: bool = False,
) -> Iterator[do.Instruction]:
    """Request a server to end the contexts of a client process, for an operator session.

    ``session`` 0: nobody waits for the answer; ``answer``: replaces the number that terminate_client prints;
    ``in_words``: answer in words, as protocol 3 does. ``timeout``: seconds to wait, if fewer than the server's.
    ``evicted``: clients that may not create contexts any more. ``is_drain``: keep the result in
    `Terminations.results`.
    """
    token = daemon.terminations.ids.take()
    contexts = frozenset(number for client in _clients_of(server, pid) for number in client.contexts)
    longest = RESET_TIMEOUT if daemon.options.terminate_by_reset else TERMINATION_TIMEOUT
    timeout = longest if timeout is None else min(timeout, longest)
    daemon.terminations.pending[token] = Termination(
        session, server.id, timeout, answer, pid, in_words, evicted, contexts, is_drain
    )
    if session:
        yield do.Working(session)
    yield do.TerminateClient(server.id, token, pid, daemon.options.terminate_by_reset, evicted)
    yield do.SetTimer(do.Timer(do.TimerKind.TERMINATION, token), timeout)


def evict(daemon: Daemon, session: int, clients: Sequence[Client], answer: Answer) -> Iterator[do.Instruction]:
    """End the contexts of clients whose namespace or SM partition was deleted, process by process.

    ``session`` gets the answer when the last process is done, or immediately if there is none; 0 if nobody waits.
    """
    ids = {client.id for client in clients}
    processes: dict[tuple[int, int], list[int]] = {}
    for server in daemon.servers.values():
        for client in server.clients.values():
            if client.id in ids:
                processes.setdefault((server.id, client.pid), []).append(client.id)
    if not processes and session:
        yield from do.reply(session, answer)
    for place, ((server_id, pid), evicted) in enumerate(processes.items(), start=1):
        last, server = place == len(processes), daemon.servers[server_id]
        yield from begin(
            daemon, session if last else 0, server, pid, answer if last else None, evicted=tuple(evicted)
        )


def end_with_answer(daemon: Daemon, server: int, token: int, code: int) -> Iterator[do.Instruction]:
    """Answer an operator with a server's CUresult number, unless the termination belongs to another server."""
    termination = daemon.terminations.pending.get(token)
    if termination is not None and termination.server == server:
        yield do.CancelTimer(do.Timer(do.TimerKind.TERMINATION, token))
        yield from _end(daemon, token, _answer(termination, code), code)


def end_with_server(daemon: Daemon, server: Server) -> Iterator[do.Instruction]:
    """Answer the operators with 806 if a server ended while it was working on their terminations."""
    for token, termination in tuple(daemon.terminations.pending.items()):
        if termination.server == server.id:
            yield from end_with_answer(daemon, server.id, token, Result.ERROR_MPS_RPC_FAILURE)


def end_with_timeout(daemon: Daemon, token: int) -> Iterator[do.Instruction]:
    """Answer an operator with 702 if the server has not answered the termination in time."""
    if (termination := daemon.terminations.pending.get(token)) is None:
        return
    code = Result.ERROR_LAUNCH_TIMEOUT
    remedy = "shutdown_server -f ends the server with its clients"
    why = f"the server did not answer within {termination.timeout:g} s; {remedy}"
    in_digits = refusal(f"{code}", diagnostic=f"terminate_client: {why}")
    yield from _end(daemon, token, _answer_in_words(termination, code) if termination.in_words else in_digits, code)


def _answer(termination: Termination, code: int) -> Answer:
    """Return the answer for a CUresult number, 0 when the contexts are gone."""
    if termination.in_words:
        return _answer_in_words(termination, code)
    if code == 0:
        return lines("0")
    why = CAUSES.get(code, "the server could not end the client")
    return refusal(f"{code}", diagnostic=f"terminate_client: {why}")


def _answer_in_words(termination: Termination, code: int) -> Answer:
    """Return the answer for a CUresult number in words, for protocol 3."""
    if code == 0:
        return Answer()
    if code == Result.ERROR_INVALID_CONTEXT:
        return refusal(f"No client with PID {termination.pid}.")
    if code == Result.ERROR_LAUNCH_TIMEOUT:
        seconds = min(termination.timeout, SERVER_TIMEOUT)
        return refusal(f"Client {termination.pid} still runs a kernel after {seconds:g} s.", diagnostic=CAUSES[code])
    return refusal(
        f"Client {termination.pid} could not be terminated.", diagnostic=CAUSES.get(code, f"CUresult {code}")
    )


def _clients_of(server: Server, pid: int) -> list[Client]:
    """Return the connections of a process; none for PID 0, which stands for all processes that are not visible."""
    return [client for client in server.clients.values() if client.pid == pid != 0]


def _end(daemon: Daemon, token: int, answer: Answer, code: int) -> Iterator[do.Instruction]:
    """End a pending termination with a CUresult number, and send its session the answer."""
    termination = daemon.terminations.pending.pop(token)
    if termination.is_drain:
        daemon.terminations.results[token] = code
    server = daemon.servers.get(termination.server)
    if code == Result.SUCCESS and server is not None:
        for record in _clients_of(server, termination.pid):
            # The process may have made a context since.
            record.terminated = termination.contexts.issuperset(record.contexts)
    if code in OVER:
        for client in termination.evicted:
            daemon.named_servers.occupied.pop(client, None)
    elif termination.answer is not None:
        # The deletion is done; its answer also reports what did not end.
        answer = evolve(termination.answer, diagnostic=answer.diagnostic or answer.printed)
    if termination.session:
        yield from do.reply(
            termination.session, termination.answer if termination.answer is not None and code in OVER else answer
        )
