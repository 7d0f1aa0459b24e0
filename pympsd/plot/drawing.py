"""A picture of tracks, by matplotlib: a row for each track, a colour for each client."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import BytesIO

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pympsd.plot.tracks import Track
from pympsd.whole_file import write_whole

ROW_INCHES = 0.32
WIDTH_INCHES = 11.0
LABEL_PART = 0.06
"""A slice has its name in it if it is at least this part of the picture."""
MOST_WITH_EDGES = 200
"""Edges of more slices than this would hide them."""
_CLIENT = re.compile(r"(client \d+): (?:\S*/)?(\S*).*", re.DOTALL)


def draw(tracks: Sequence[Track], path: str) -> None:
    """Write a picture; its format is that of the file's suffix. OSError, ValueError for an unknown suffix.

    A picture that was there is replaced when the new one is complete.
    """
    kind = os.path.splitext(path)[1].removeprefix(".").lower()
    if not kind:
        raise ValueError("the suffix of a picture says its format: .svg, .png or .pdf")
    mpl.rcParams["svg.hashsalt"] = "pympsd"  # the same trace is the same file
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * len(tracks)), layout="constrained")
    axes = figure.add_subplot()
    clients = {track.process for track in tracks if track.process_name.startswith("client ")}
    palette = mpl.colormaps["tab10"]
    colours = {client: palette(place % 10) for place, client in enumerate(sorted(clients))}
    began = min((one.began for track in tracks for one in track.slices), default=0.0)
    ended = max((one.ended for track in tracks for one in track.slices), default=1.0)
    for row, track in enumerate(tracks):
        spans = [(one.began, max(one.ended - one.began, 1e-6)) for one in track.slices]
        faces = [colours.get(one.client, "0.8") for one in track.slices]
        edge = 0.4 if len(spans) <= MOST_WITH_EDGES else 0.0
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=faces, edgecolors="white", linewidth=edge)
        for one in track.slices:
            if one.ended - one.began >= LABEL_PART * (ended - began):
                middle = (one.began + one.ended) / 2
                axes.text(middle, row, one.name[:40], ha="center", va="center", fontsize=7, clip_on=True)
        for moment in track.moments:
            axes.plot(moment.at, row, marker="v", color="red")
            axes.annotate(moment.name, (moment.at, row - 0.4), fontsize=7, color="red", ha="center")
    axes.set_yticks(range(len(tracks)), [_title(track) for track in tracks], fontsize=7)
    axes.set_ylim(len(tracks) - 0.4, -0.6)
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x", alpha=0.3)
    handles = [Patch(color=colour, label=f"client {client}") for client, colour in colours.items()]
    if handles:
        axes.legend(handles=handles[:20], fontsize=7, loc="upper right")
    picture = BytesIO()
    figure.savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_whole(os.path.realpath(path), picture.getvalue())


def _title(track: Track) -> str:
    """Return a track's name, with no more of a client's command than its program."""
    client = _CLIENT.fullmatch(track.process_name)
    process = f"{client[1]} ({client[2]})" if client else track.process_name or str(track.process)
    return f"{process}: {track.name or track.thread}"
