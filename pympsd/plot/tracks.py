"""The tracks of traces (`pympsd.channel.trace_file`) with their events, in milliseconds from the first event."""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from attrs import define, field, frozen

from pympsd.errors import InputError


class BadTrace(InputError, ValueError):
    """A text is not a trace; the message explains why."""


@frozen
class Slice:
    """An activity from one time to another."""

    name: str
    began: float
    ended: float
    client: int
    """The PID of the client for which it was done; 0 if for none."""


@frozen
class Moment:
    """An event at one time."""

    name: str
    at: float


@define
class Track:
    """The activities and events of one track, in the order of time."""

    process: int
    thread: int
    process_name: str = ""
    name: str = ""
    slices: list[Slice] = field(factory=list)
    moments: list[Moment] = field(factory=list)

    @property
    def title(self) -> str:
        """The track's name to show."""
        return f"{self.process_name or self.process}: {self.name or self.thread}"

    @property
    def rank(self) -> tuple[int, int, int]:
        """The sort key of the track: the daemon and its servers first, then devices, then clients."""
        kinds = ("MPS control daemon", "server ", "device ")
        kind = next((place for place, text in enumerate(kinds) if self.process_name.startswith(text)), len(kinds))
        return kind, self.process, self.thread


def read_tracks(texts: Iterable[str], since: float = 0.0, until: float = float("inf")) -> list[Track]:
    """Return the tracks of traces that were written on one machine; raise BadTrace.

    Keep only the events that overlap the period from ``since`` to ``until``, in milliseconds from the first event.
    """
    tracks: dict[tuple[int, int], Track] = {}
    processes: dict[int, str] = {}
    events = [event for text in texts for event in _events(text)]
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        process, thread = event["pid"], event.get("tid", 0)
        if event["ph"] == "M":
            if event["name"] == "process_name":
                processes.setdefault(process, event["args"]["name"])
            elif event["name"] == "thread_name":
                tracks.setdefault((process, thread), Track(process, thread)).name = event["args"]["name"]
            continue
        track = tracks.setdefault((process, thread), Track(process, thread))
        began = (event["ts"] - first) / 1000
        ended = began + event.get("dur", 0.0) / 1000
        if ended < since or began > until:
            continue
        if event["ph"] == "X":
            # An event on a device's track states its client.
            client = int(event["args"].get("client", event["pid"]))
            track.slices.append(Slice(event["name"], max(began, since), min(ended, until), client))
        else:
            track.moments.append(Moment(event["name"], began))
    for track in tracks.values():
        track.process_name = processes.get(track.process, "")
        track.slices.sort(key=lambda track: track.began)
    return sorted((track for track in tracks.values() if track.slices or track.moments), key=lambda track: track.rank)


MAX_PERIODS = 4


def busy_periods(tracks: Iterable[Track]) -> list[tuple[float, float]]:
    """Return the start and the end, in milliseconds, of the periods in which something happened.

    There are at most MAX_PERIODS. A gap separates two periods if it is longer than all of the time without this gap
    and the gaps that are longer still. So two traces that were written an hour apart have a period each.
    """
    times = [(slice_.began, slice_.ended) for track in tracks for slice_ in track.slices]
    times += [(moment.at, moment.at) for track in tracks for moment in track.moments]
    merged: list[tuple[float, float]] = []
    for began, ended in sorted(times):
        if merged and began <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        else:
            merged.append((began, ended))
    if not merged:
        return [(0.0, 1.0)]
    gaps = sorted(((after[0] - before[1], before[1]) for before, after in pairwise(merged)), reverse=True)
    remaining, cuts = merged[-1][1] - merged[0][0], set()
    for length, place in gaps[: MAX_PERIODS - 1]:
        remaining -= length
        if length <= remaining:
            break
        cuts.add(place)
    periods = [merged[0]]
    for before, after in pairwise(merged):
        if before[1] in cuts:
            periods.append(after)
        else:
            periods[-1] = periods[-1][0], after[1]
    return periods


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace. The last line may be incomplete, if a process was killed or the disk is full."""
    lines = text.splitlines()
    if lines[:1] != ["["]:
        raise BadTrace("the file is not a trace of pympsd, whose first line is '['")
    for number, line in enumerate(lines[1:], 2):
        if line == "]":
            continue
        try:
            event = json.loads(line.removesuffix(","))
            _check(event)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not text.endswith("\n"):
                return
            raise BadTrace(f"line {number} is not an event: {error}") from None
        yield event


def _check(event: dict[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for an event that pympsd does not write."""
    kind, numbers = event["ph"], [event["pid"]]
    if kind == "M":
        if event["name"] in ("process_name", "thread_name") and not isinstance(event["args"]["name"], str):
            raise TypeError("a name is text")
    elif kind in ("X", "i"):
        numbers += [event["tid"], event["ts"], event.get("dur", 0)]
        event["args"].get("client")
    else:
        raise ValueError(f"an event of kind {kind!r}")
    if not isinstance(event["name"], str) or not all(type(number) in (int, float) for number in numbers):
        raise TypeError("a name is text, and times and numbers of tracks are numbers")
