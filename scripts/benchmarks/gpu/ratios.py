"""The ratios of pympsd to each baseline, compared with the targets: one table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import field, frozen

from gpu import quality, single, throughput, ways
from gpu.figures import Figures
from gpu.kernels import COUNTS, KERNELS

AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"
SHORT_KERNEL, MIDDLE_KERNEL, LONG_KERNEL, EMPTY_KERNEL = (kernel.name for kernel in KERNELS)
_TO_16: Final = (1, 2, 4, 8, 16)
_TO_32: Final = (*_TO_16, 32)
_VENDOR_JUDGED: Final = {SHORT_KERNEL: _TO_16, MIDDLE_KERNEL: _TO_32, LONG_KERNEL: _TO_32, EMPTY_KERNEL: ()}
_NATIVE: Final = "native"
_ONE: Final = (1,)
_TWO: Final = (2,)


@frozen
class Row:
    """Ratios by number of clients (None: not measured), and the bound of those in ``judged``, with its ``sense``."""

    what: str
    against: str
    ratios: Mapping[int, float | None] = field(hash=False)
    sense: str = AT_LEAST
    bound: float | None = None
    judged: tuple[int, ...] = ()

    def is_short(self, count: int) -> bool:
        """Whether a ratio misses its bound."""
        ratio = self.ratios.get(count)
        if self.bound is None or ratio is None or count not in self.judged:
            return False
        return ratio < self.bound if self.sense == AT_LEAST else ratio > self.bound

    @property
    def target(self) -> str:
        """The target in words; empty if it is only reported."""
        if self.bound is None or not set(self.judged) & set(self.ratios):
            return ""
        where = "" if set(self.judged) >= set(self.ratios) else f" at N={_numbers(self.judged)}"
        return f"{self.sense} {self.bound:g}{where}"

    @property
    def verdict(self) -> str:
        """``met``, ``short`` and where, ``not measured`` and where; empty without a target."""
        if not self.target:
            return ""
        short = [count for count in self.judged if self.is_short(count)]
        missing = [count for count in self.judged if count in self.ratios and self.ratios[count] is None]
        words = [f"short at N={_numbers(short)}"] if short else []
        words += [f"not measured at N={_numbers(missing)}"] if missing else []
        return "; ".join(words) or "met"


def rows(figures: Figures, counts: tuple[int, ...] = COUNTS) -> list[Row]:
    """Return the table's rows for the requested sections."""
    rows: list[Row] = []
    if throughput.SECTION in figures.sections:
        rows += _launches(figures, counts)
    if single.LATENCY in figures.sections:
        rows += _latencies(figures)
    if single.COPIES in figures.sections:
        rows += _copies(figures)
    if quality.SECTION in figures.sections:
        rows += _quality(figures)
    return [row for row in rows if row.ratios]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return a ratio, None if either value is missing."""
    return ours / theirs if ours is not None and theirs else None


def _launches(figures: Figures, counts: tuple[int, ...]) -> Iterator[Row]:
    def against(kernel: str, way: str, where: tuple[int, ...]) -> dict[int, float | None]:
        section = throughput.SECTION
        return {
            count: ratio(
                figures.get(section, ways.PYMPSD, kernel, str(count)), figures.get(section, way, kernel, str(count))
            )
            for count in counts
            if count in where
        }

    for kernel in (entry.name for entry in KERNELS):
        every = tuple(counts)
        several = tuple(count for count in counts if count > 1)
        what = f"launches/s, {kernel}"
        eight = 8 if kernel in (SHORT_KERNEL, MIDDLE_KERNEL) else None
        yield Row(what, ways.ONE_CONTEXT, against(kernel, ways.ONE_CONTEXT, every), AT_LEAST, 0.9, every)
        if kernel != LONG_KERNEL:
            yield Row(what, ways.UNBOUNDED, against(kernel, ways.UNBOUNDED, (throughput.UNBOUNDED_CLIENTS,)))
        judged = tuple(count for count in _VENDOR_JUDGED[kernel] if count in counts)
        yield Row(what, ways.VENDOR, against(kernel, ways.VENDOR, every), AT_LEAST, 0.9 if judged else None, judged)
        yield Row(what, ways.SLICING, against(kernel, ways.SLICING, several), AT_LEAST, eight, (16,))
        yield Row(what, _NATIVE, against(kernel, ways.SLICING, _ONE), AT_LEAST, 0.8, _ONE)
        yield Row(what, ways.BINDINGS, against(kernel, ways.BINDINGS, _ONE))


def _latencies(figures: Figures) -> Iterator[Row]:
    def row(what: str, against: str, bound: float | None = None) -> Row:
        way = ways.SLICING if against == _NATIVE else against
        section = single.LATENCY
        value = ratio(figures.get(section, ways.PYMPSD, what), figures.get(section, way, what))
        return Row(what, against, {1: value}, AT_MOST, bound, _ONE)

    yield row("launch and synchronise, p50", _NATIVE, 3.0)
    yield row("launch and synchronise, p99", _NATIVE)
    yield row("launch and synchronise, p50", ways.BINDINGS)
    yield row("asynchronous launch", ways.BINDINGS, 1.5)
    yield row("allocate and free", _NATIVE)
    yield row("allocate and free", ways.BINDINGS)


def _copies(figures: Figures) -> Iterator[Row]:
    for kind in single.KINDS:
        ours, theirs = (figures.get(single.COPIES, way, kind) for way in (ways.PYMPSD, ways.SLICING))
        bound = 0.8 if kind.startswith("pageable") else 0.9
        yield Row(f"256 MiB {kind}", _NATIVE, {1: ratio(ours, theirs)}, AT_LEAST, bound, _ONE)


def _quality(figures: Figures) -> Iterator[Row]:
    def p99(way: str, situation: str) -> float | None:
        return figures.get(quality.SECTION, way, situation, "p99")

    what = "p99 of a small kernel beside a full GPU"
    alone = p99(ways.PYMPSD, quality.ALONE)
    halves = {2: ratio(p99(ways.PYMPSD, quality.HALVES), alone)}
    yield Row(f"{what}, {quality.HALVES}", "itself alone", halves, AT_MOST, 1.5, _TWO)
    for situation in (quality.BELOW, quality.FULL):
        yield Row(f"{what}, {situation}", "itself alone", {2: ratio(p99(ways.PYMPSD, situation), alone)}, AT_MOST)
    yield Row("p99 of a small kernel, alone", _NATIVE, {1: ratio(alone, p99(ways.SLICING, quality.ALONE))}, AT_MOST)
    for situation in (quality.HALVES, quality.BELOW, quality.FULL):
        value = ratio(p99(ways.PYMPSD, situation), p99(ways.VENDOR, situation))
        yield Row(f"{what}, {situation}", ways.VENDOR, {2: value}, AT_MOST)
    slicing = ratio(p99(ways.PYMPSD, quality.HALVES), p99(ways.SLICING, quality.FULL))
    yield Row(f"{what}, {quality.HALVES}", ways.SLICING, {2: slicing}, AT_MOST)


def _numbers(counts: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, counts))


# --- as text


def table(found: list[Row], counts: tuple[int, ...] = COUNTS) -> str:
    """Return the rows as a Markdown table, a column for each number of clients; a ratio that is short has a ``!``."""
    columns = tuple(sorted({*counts, *(count for row in found for count in row.ratios)}))
    header = ("pympsd's figure over", "that of", *(f"N={count}" for count in columns), "target", "")
    lines = [header, *((row.what, row.against, *_cells(row, columns), row.target, row.verdict) for row in found)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
    texts = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def _cells(row: Row, columns: tuple[int, ...]) -> Iterator[str]:
    for count in columns:
        if count not in row.ratios:
            yield ""
            continue
        value = row.ratios[count]
        yield "-" if value is None else f"{value:.2f}{'!' if row.is_short(count) else ''}"
