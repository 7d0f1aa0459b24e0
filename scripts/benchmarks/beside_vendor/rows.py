"""The table: pympsd's figures over the vendor's, with their bounds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from gpu import ways
from gpu.figures import Figures
from gpu.kernels import KERNELS
from gpu.ratios import AT_LEAST, AT_MOST, Row

from beside_vendor import inference, sections

LAUNCHES_BOUND: Final = 0.97
JOIN_BOUND: Final = 1.05
ARRIVAL_BOUND: Final = 1.1
TURN_MILLISECONDS: Final = 20.0
PS_BOUND: Final = 1.6
_ONE: Final = (1,)
_MS: Final = "(ms)"


def rows(figures: Figures, counts: tuple[int, ...]) -> list[Row]:
    """Return the rows of the requested sections."""
    made = {
        sections.PS: _questions,
        sections.JOIN: _joins,
        sections.TURN: _turns,
        sections.ARRIVAL: _arrivals,
        sections.IDLE: _idle,
        sections.LAUNCHES: lambda figures: _launches(figures, counts),
        inference.SECTION: inference.rows,
    }
    return [row for section in made if section in figures.sections for row in made[section](figures)]


def _over(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _with_others(figures: Figures, section: str, what: str) -> float | None:
    return _over(figures.get(section, ways.PYMPSD, what), figures.get(section, ways.VENDOR, what))


def _rates(figures: Figures, daemon: str, kernel: str, count: int) -> list[float]:
    result = []
    number = 0
    while sections.round_of(daemon, number) in figures.values.get(sections.LAUNCHES, {}):
        rate = figures.get(sections.LAUNCHES, sections.round_of(daemon, number), kernel, str(count))
        result += [] if rate is None else [rate]
        number += 1
    return result


def _launches(figures: Figures, counts: tuple[int, ...]) -> Iterator[Row]:
    for kernel in KERNELS:
        ratios: dict[int, float | None] = {}
        spread: dict[int, float | None] = {}
        for count in counts:
            ours, theirs = (_rates(figures, name, kernel.name, count) for name in (ways.PYMPSD, ways.VENDOR))
            ratios[count] = _over(statistics.median(ours), statistics.median(theirs)) if ours and theirs else None
            spread[count] = _over(min(theirs), max(theirs)) if theirs else None
        yield Row(f"launches/s, {kernel.name}", ways.VENDOR, ratios, AT_LEAST, LAUNCHES_BOUND, counts)
        yield Row("    the vendor's slowest round", "its fastest", spread)


def _joins(figures: Figures) -> Iterator[Row]:
    what = "cuInit to first kernel, p50"
    value = {1: _with_others(figures, sections.JOIN, what)}
    yield Row(what, ways.VENDOR, value, AT_MOST, JOIN_BOUND, _ONE)
    what = "cuInit, p50"
    yield Row(what, ways.VENDOR, {1: _with_others(figures, sections.JOIN, what)}, AT_MOST)


def _arrivals(figures: Figures) -> Iterator[Row]:
    value = {sections.ARRIVALS: _with_others(figures, sections.ARRIVAL, "until all have a context")}
    yield Row("all connect at once, until all have a context", ways.VENDOR, value, AT_MOST, ARRIVAL_BOUND, (48,))


def _turns(figures: Figures) -> Iterator[Row]:
    if any(note["cell"].startswith("the turn") for note in figures.left_out):
        return
    for what, bound in ((sections.EXIT_TO_START, TURN_MILLISECONDS), (sections.EXIT_TO_SUCCESS, None)):
        ours, theirs = (figures.get(sections.TURN, name, what) for name in (ways.PYMPSD, ways.VENDOR))
        yield Row(f"turn: {what}", _MS, {1: ours}, AT_MOST, bound, _ONE)
        yield Row(f"turn: {what}, the vendor's", _MS, {1: theirs}, AT_MOST)


def _idle(figures: Figures) -> Iterator[Row]:
    for name, bound in ((ways.PYMPSD, 0.0), (ways.VENDOR, None)):
        value = {1: figures.get(sections.IDLE, name, "wake-ups")}
        yield Row(f"wake-ups in 10 s, one client idle: {name}", "(number)", value, AT_MOST, bound, _ONE)


def _questions(figures: Figures) -> Iterator[Row]:
    ours = figures.get(sections.PS, ways.PYMPSD, "echo ps |")
    bare = _over(ours, figures.get(sections.PS, sections.BARE, "echo ps |"))
    yield Row("echo ps | pympsd", sections.BARE, {1: bare}, AT_MOST, PS_BOUND, _ONE)
    yield Row("echo ps | pympsd", ways.VENDOR, {1: _with_others(figures, sections.PS, "echo ps |")}, AT_MOST)
