"""Show the table on a terminal, and handle keys."""

import contextlib
import curses
import os
import time

from pympsd.control import CannotAsk, Control
from pympsd.errors import StartError
from pympsd.top.table import COLUMNS, QUERIES, SORTS, Answers, ClientRow, Rates, lines, rows, summary
from pympsd.vocabulary.untrusted import printable

ESCAPE = "\x1b"
KEYS = {
    "up, down": "select a row",
    "s": f"next order: {', '.join(SORTS)}",
    "/": "filter: only rows that have a text; an empty text ends it",
    "t": "terminate the selected client",
    "h, ?": "this help",
    "q": "quit",
}
HELP = (
    "Keys",
    *(f"  {key:<10} {meaning}" for key, meaning in KEYS.items()),
    "",
    "Columns",
    *(f"  {column.heading:<10} {column.meaning}" for column in COLUMNS),
)


def show(daemon: Control, interval: float, sort: str, filter_text: str) -> None:
    """Show the table until q is pressed; ``interval``: seconds between two requests.

    Raise CannotAsk or NoTerminal.
    """
    try:
        curses.setupterm()
    except curses.error:
        name = os.environ.get("TERM", "")
        raise NoTerminal(f"TERM={name!r} is not a known terminal here: set TERM, or use --once") from None
    curses.wrapper(lambda window: _Screen(window, daemon, interval, sort, filter_text).run())


class NoTerminal(StartError):
    """Raised if the table cannot be drawn here; the message explains why and what to do."""


class _Screen:
    def __init__(self, window: curses.window, daemon: Control, interval: float, sort: str, filter_text: str) -> None:
        self._window, self._daemon, self._interval = window, daemon, interval
        self._sort, self._filter = sort, filter_text
        self._rates = Rates()
        self._selected = 0
        self._note = daemon.owner_warning

    def run(self) -> None:
        with contextlib.suppress(curses.error):  # the terminal cannot hide the cursor
            curses.curs_set(0)
        while True:
            answers = Answers.of(self._daemon.query(*QUERIES))
            rates = self._rates.measure(answers.servers, time.monotonic())
            visible_rows = rows(answers, self._sort, self._filter, rates)
            self._selected = min(self._selected, max(0, len(visible_rows) - 1))
            self._draw(summary(answers), visible_rows)
            self._window.timeout(int(self._interval * 1000))
            if not self._handle(self._window.getch(), visible_rows):
                return

    def _handle(self, key: int, visible_rows: list[ClientRow]) -> bool:
        """Carry out a key (-1 if none was pressed); return whether to continue."""
        if key != -1:
            self._note = ""
        if key == ord("q"):
            return False
        if key == ord("s"):
            orders = list(SORTS)
            self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        elif key in (curses.KEY_UP, curses.KEY_DOWN):
            self._selected = max(0, self._selected + (1 if key == curses.KEY_DOWN else -1))
        elif key == ord("/"):
            self._filter = self._ask("filter: ")
        elif key in (ord("h"), ord("?")):
            self._help()
        elif key == ord("t") and visible_rows:
            self._terminate(visible_rows[self._selected])
        return True

    def _terminate(self, row: ClientRow) -> None:
        if not row.server:
            self._note = f"{row.pid} is not a client of a server: select one"
        elif self._ask(f"terminate client {row.pid} of server {row.server}? yes or no: ") == "yes":
            try:
                result = self._daemon.command(f"terminate_client {row.server} {row.pid}").strip()
                self._note = f"client {row.pid}: terminated" if result == "0" else f"client {row.pid}: {result}"
            except CannotAsk as error:
                self._note = str(error)
        else:
            self._note = "not terminated"

    def _help(self) -> None:
        """Show the keys and the columns until a key is pressed."""
        self._window.erase()
        for place, text in enumerate(HELP):
            self._line(place, text)
        self._line(curses.LINES - 1, "any key: back to the table", curses.A_REVERSE)
        self._window.timeout(-1)
        self._window.getch()

    def _ask(self, question: str) -> str:
        """Ask a question on the last line; return the reply, or an empty text if the user presses Escape."""
        self._window.timeout(-1)
        text = ""
        while True:
            self._line(curses.LINES - 1, question + text)
            key = self._window.get_wch()
            if key in ("\n", "\r", curses.KEY_ENTER):
                return text
            if key == ESCAPE:
                return ""
            if key in ("\x7f", "\b", curses.KEY_BACKSPACE):
                text = text[:-1]
            elif isinstance(key, str) and key.isprintable():
                text += key

    def _draw(self, first: str, visible_rows: list[ClientRow]) -> None:
        curses.update_lines_cols()
        self._window.erase()
        self._line(0, f"{first}; order: {self._sort}" + (f"; filter: {self._filter}" if self._filter else ""))
        heading, *texts = lines(visible_rows)
        self._line(1, heading, curses.A_REVERSE)
        height = max(1, curses.LINES - 3)
        start = max(0, self._selected - height + 1)
        for place, text in enumerate(texts[start : start + height]):
            self._line(2 + place, text, curses.A_BOLD if start + place == self._selected else 0)
        self._line(curses.LINES - 1, self._note or "q quit  s order  / filter  t terminate  h help")

    def _line(self, at: int, text: str, look: int = 0) -> None:
        with contextlib.suppress(curses.error):  # the terminal is too small for the line
            self._window.addnstr(at, 0, printable(text).ljust(curses.COLS), curses.COLS - 1, look)
