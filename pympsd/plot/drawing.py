"""Draw tracks with matplotlib: a row for each track, a colour for each client."""

import os
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pympsd.plot.tracks import Track, busy_periods
from pympsd.process.files import write_whole
from pympsd.vocabulary.untrusted import printable

ROW_INCHES = 0.32
WIDTH_INCHES = 11.0
MIN_PANEL = 0.15
"""The minimum width of a panel, as a fraction of the picture's width."""
LABEL_PART = 0.06
"""The minimum width of a slice that shows its name, as a fraction of the picture's width."""
MAX_WITH_EDGES = 200
"""The maximum number of slices that are drawn with edges; edges of more slices would hide them."""
_CLIENT = re.compile(r"(client \d+): (?:\S*/)?(\S*).*", re.DOTALL)


def draw(tracks: Sequence[Track], path: str) -> None:
    """Write a picture in the format of the file's suffix. Raise OSError, or ValueError for an unknown suffix.

    Each period in which something happened has its own panel, and the time between periods is left out
    (`busy_periods`). An existing picture is replaced when the new one is complete.
    """
    kind = os.path.splitext(path)[1].removeprefix(".").lower()
    if not kind:
        raise ValueError("the suffix of a picture names its format: .svg, .png or .pdf")
    mpl.rcParams["svg.hashsalt"] = "pympsd"  # so that the same trace gives the same file
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["text.parse_math"] = False  # names are not formulas, and clients choose them
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * len(tracks)), layout="constrained")
    clients = {track.process for track in tracks if track.process_name.startswith("client ")}
    palette = mpl.colormaps["tab10"]
    colours = {client: palette(place % 10) for place, client in enumerate(sorted(clients))}
    periods = busy_periods(tracks)
    total = sum(ended - began for began, ended in periods) or 1.0
    parts = [max(MIN_PANEL, (ended - began) / total) for began, ended in periods]
    panels = figure.subplots(1, len(periods), sharey=True, squeeze=False, width_ratios=parts)[0]
    for panel, period, part in zip(panels, periods, parts, strict=True):
        _draw_panel(panel, tracks, colours, period, part / sum(parts))
    panels[0].set_yticks(range(len(tracks)), [_title(track) for track in tracks], fontsize=7)
    panels[0].set_ylim(len(tracks) - 0.4, -0.6)
    figure.supxlabel("milliseconds", fontsize=9)
    handles = [Patch(color=colour, label=f"client {client}") for client, colour in colours.items()]
    if handles:
        figure.legend(handles=handles[:20], fontsize=7, loc="outside right upper")
    picture = BytesIO()
    figure.savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_whole(os.path.realpath(path), picture.getvalue())


def _draw_panel(
    axes: Axes, tracks: Sequence[Track], colours: Mapping[int, Any], period: tuple[float, float], part: float
) -> None:
    """Draw the events of a period; ``part``: the panel's fraction of the picture's width."""
    began, ended = period
    for row, track in enumerate(tracks):
        slices = [slice_ for slice_ in track.slices if slice_.ended >= began and slice_.began <= ended]
        spans = [(slice_.began, max(slice_.ended - slice_.began, 1e-6)) for slice_ in slices]
        faces = [colours.get(slice_.client, "0.8") for slice_ in slices]
        edge = 0.4 if len(spans) <= MAX_WITH_EDGES else 0.0
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=faces, edgecolors="white", linewidth=edge)
        for slice_ in slices:
            if (slice_.ended - slice_.began) * part >= LABEL_PART * (ended - began):
                middle = (slice_.began + slice_.ended) / 2
                name = printable(slice_.name[:40])
                axes.text(middle, row, name, ha="center", va="center", fontsize=7, clip_on=True)
        for moment in track.moments:
            if began <= moment.at <= ended:
                axes.plot(moment.at, row, marker="v", color="red")
                axes.annotate(printable(moment.name), (moment.at, row - 0.4), fontsize=7, color="red", ha="center")
    margin = 0.02 * (ended - began) or 1.0
    axes.set_xlim(began - margin, ended + margin)
    axes.xaxis.set_major_locator(MaxNLocator(max(1, int(10 * part))))
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", alpha=0.3)


def _title(track: Track) -> str:
    """Return a track's name, in which a client's command is shortened to its program."""
    client = _CLIENT.fullmatch(track.process_name)
    process = f"{client[1]} ({client[2]})" if client else track.process_name or str(track.process)
    return printable(f"{process}: {track.name or track.thread}")
