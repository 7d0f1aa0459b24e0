"""Random and mutated command lines and frames, from a seeded generator: the same seed gives the same sessions."""

from __future__ import annotations

import random

from pympsd.commands.grammar.registry import COMMANDS
from pympsd.wire import frames, messages
from pympsd.wire.messages import Versions

NUMBERS = (
    *(b"0 1 -1 2 7 100 101 99.5 1e1 1e999 nan inf -inf 0x10 12abc abc 2147483647 2147483648 -2147483649".split()),
    b"9" * 5000,
    b"\xff\xfe",
    "\u0663".encode(),
)
WORDS = (
    b"-uid",
    b"-",
    b"uid",
    b"-t",
    b"-p",
    b"-f",
    b"--csv",
    b"0G",
    b"1G",
    b"900M",
    b"1T",
    b"GPU-",
    b"GPU-7685",
    b"",
)
BLANKS = (b" ", b" ", b" ", b"\t", b"  ", b" \t ", b"\r", b"\0", b"\n", b"\x0b", b"\xc2\xa0")
SEEDS = (
    b"get_server_list",
    b"get_server_status %d",
    b"start_server -uid %d",
    b"get_client_list %d",
    b"get_device_client_list %d",
    b"set_default_active_thread_percentage 50",
    b"set_active_thread_percentage %d 50",
    b"set_default_device_pinned_mem_limit 0 2G",
    b"set_device_pinned_mem_limit %d 0 900M",
    b"set_default_client_priority 1",
    b"terminate_client %d %d",
    b"shutdown_server %d -f",
    b"device_query %d --csv",
    b"ps -p %d",
    b"quit -t 0",
)


class Lines:
    """Makes lines; ``pids`` are numbers worth naming."""

    def __init__(self, source: random.Random, pids: tuple[int, ...] = ()) -> None:
        self.source = source
        self.pids = pids
        commands = [entry for entry in COMMANDS.values() if 2 in entry.protocols and not entry.verb]
        # A drain of a client is answered when that has ended (tests/state_machine/test_drains_any_order.py).
        self.names = [command.name.encode() for command in commands if command.name != "drain"]

    def line(self) -> bytes:
        """Return one line: well-formed, mutated, put together, or noise."""
        kind = self.source.random()
        if kind < 0.3:
            return self._seed()
        if kind < 0.6:
            return self._mutated(self._seed())
        if kind < 0.95:
            return self._assembled()
        return self.source.randbytes(self.source.choice((0, 1, 10, 200, 70_000 if kind > 0.998 else 50)))

    def _pid(self) -> int:
        return (
            self.source.choice(self.pids) if self.pids and self.source.random() < 0.8 else self.source.randint(0, 99)
        )

    def _seed(self) -> bytes:
        seed = self.source.choice(SEEDS)
        return seed % tuple(self._pid() for _ in range(seed.count(b"%d")))

    def _mutated(self, line: bytes) -> bytes:
        mutated = bytearray(line)
        for _ in range(self.source.randint(1, 4)):
            at = self.source.randint(0, len(mutated))
            match self.source.randint(0, 5):
                case 0:
                    mutated[at : at + 1] = b""
                case 1:
                    mutated[at:at] = bytes((self.source.randint(0, 255),))
                case 2:
                    mutated[at:at] = self.source.choice(BLANKS)
                case 3:
                    mutated[at:at] = self.source.choice(NUMBERS)
                case 4:
                    del mutated[at:]
                case 5:
                    mutated += mutated[at:]
        return bytes(mutated)

    def _assembled(self) -> bytes:
        words = [self.source.choice(self.names)]
        for _ in range(self.source.randint(0, 4)):
            pid = b"%d" % self._pid()
            words.append(self.source.choice((self.source.choice(NUMBERS), self.source.choice(WORDS), pid)))
        blank = self.source.choice(BLANKS)
        return self.source.choice((b"", blank)) + blank.join(words) + self.source.choice((b"", b"\r", b"\n", blank))


def conversation(source: random.Random, lines: list[bytes]) -> bytes:
    """Return what a peer reports to the daemon: lines in frames, whole or spoilt, or no frames at all."""
    kind = source.random()
    if kind < 0.15:
        return source.randbytes(source.randint(0, 400))
    if kind < 0.25:
        return _hello_of_a_client(source)
    output = [frames.encode(frames.OPERATOR_HELLO, source.randbytes(source.choice((0, 0, 0, 5))))]
    output += [frames.encode(frames.OPERATOR_LINE, line) for line in lines]
    if kind < 0.35:
        kinds, bodies = (0, 1, 3, 6, 16, 17, 40, 65535), (0, 1, 100, 66000)
        output.insert(
            source.randint(0, len(output)),
            frames.encode(source.choice(kinds), source.randbytes(source.choice(bodies))),
        )
    stream = bytearray(b"".join(output))
    if kind < 0.6:
        for _ in range(source.randint(1, 3)):
            stream[source.randrange(len(stream))] = source.randint(0, 255)
    if kind < 0.5:
        del stream[source.randint(0, len(stream)) :]
    return bytes(stream)


def _hello_of_a_client(source: random.Random) -> bytes:
    hello = messages.ClientHello(Versions(), source.randint(-5, 1 << 20), "fuzz", 1, {"CUDA_VISIBLE_DEVICES": "0"})
    frame = bytearray(messages.encode(hello))
    for _ in range(source.randint(1, 5)):
        frame[source.randrange(frames.HEADER_BYTES, len(frame))] = source.randint(0, 255)
    return bytes(frame)
