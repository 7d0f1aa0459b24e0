"""Traces: what is written is read again, whatever is cut; and what is drawn."""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from pympsd.channel.trace_file import TraceFile
from pympsd.plot.program import main
from pympsd.plot.tracks import MAX_PERIODS, BadTrace, busy_periods, read_tracks
from pympsd.vocabulary.untrusted import printable

NAMES = st.text(min_size=1, max_size=20)
SECONDS = 60
TIMES = st.integers(0, 10**15)


@frozen
class Written:
    """A slice."""

    process: int
    thread: int
    name: str
    began: int
    lasted: int


SLICES = st.lists(
    st.builds(Written, st.integers(1, 5), st.integers(0, 3), NAMES, TIMES, st.integers(0, 10**9)), min_size=1
)


def write_slices(path: Path, slices: list[Written], *, end: bool = True) -> str:
    """Write slices to a trace; return its text."""
    path.unlink(missing_ok=True)
    trace = TraceFile.make(str(path))
    for entry in slices:
        trace.name(entry.process, f"process {entry.process}")
        trace.name(entry.process, f"thread {entry.thread}", entry.thread)
        trace.slice(entry.process, entry.thread, entry.name, entry.began, entry.began + entry.lasted)
    if end:
        trace.end()
    trace.close()
    return path.read_text()


@given(SLICES)
def test_a_written_trace_is_read_back(tmp_path_factory: pytest.TempPathFactory, slices: list[Written]) -> None:
    text = write_slices(tmp_path_factory.getbasetemp() / "trace.json", slices)
    assert [event["name"] for event in json.loads(text) if event["ph"] == "X"] == [entry.name for entry in slices]
    tracks = read_tracks([text])
    assert {(track.process, track.thread) for track in tracks} == {(entry.process, entry.thread) for entry in slices}
    assert all(track.title == f"process {track.process}: thread {track.thread}" for track in tracks)
    first = min(entry.began for entry in slices)
    read = sorted((entry.began, entry.name) for track in tracks for entry in track.slices)
    expected = sorted(((entry.began - first) / 1e6, entry.name) for entry in slices)
    assert [began for began, _ in read] == pytest.approx([began for began, _ in expected], abs=1e-3, rel=1e-3)


@given(SLICES, st.integers(0, 10_000))
def test_a_cut_trace_has_what_was_written_before(
    tmp_path_factory: pytest.TempPathFactory, slices: list[Written], left: int
) -> None:
    text = write_slices(tmp_path_factory.getbasetemp() / "cut.json", slices, end=False)
    cut = text[: max(2, left % (len(text) + 1))]
    read = sum(len(track.slices) for track in read_tracks([cut]))
    assert read in (cut.count('"ph":"X"'), cut.count('"ph":"X"') - 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is not a trace"),
        ("{}\n", "the file is not a trace"),
        ("[\nnonsense\n]\n", "line 2 is not an event"),
        ("[\n{}\n]\n", "line 2 is not an event"),
        (
            '[\n{"ph":"X","name":"a","pid":1,"tid":0,"ts":"now","args":{}}\n]\n',
            "line 2 is not an event: a name is text",
        ),
        ('[\n{"ph":"B","name":"a","pid":1}\n]\n', "line 2 is not an event: an event of kind 'B'"),
        ("[\n[1]\n]\n", "line 2 is not an event"),
    ],
)
def test_what_is_not_a_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_tracks([text])


@given(st.text(alphabet=string.printable, max_size=80))
def test_any_line_is_an_event_or_refused(line: str) -> None:
    with suppress(BadTrace):
        read_tracks([f"[\n{line}\n]\n"])


def test_a_time_is_cut_out(tmp_path: Path) -> None:
    text = write_slices(tmp_path / "t", [Written(1, 0, name, at * 10**6, 10**6) for at, name in enumerate("abcd")])
    (track,) = read_tracks([text], 1.5, 2.5)
    assert [(entry.name, entry.began, entry.ended) for entry in track.slices] == [("b", 1.5, 2.0), ("c", 2.0, 2.5)]


def test_a_full_disk_ends_the_writing() -> None:
    trace = TraceFile(os.open("/dev/full", os.O_WRONLY))
    trace.instant(1, 0, "a", 5)
    assert trace.error == "No space left on device"
    trace.instant(1, 0, "b", 6)
    trace.end()


PLOT_ON_A_FULL_DISK = """
import resource, sys
from pympsd.plot.drawing import draw  # fonts may be cached before
from pympsd.plot.program import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
sys.exit(main(sys.argv[1:]))
"""


def plot(*arguments: str) -> str:
    """Run the command, in a process of its own: matplotlib keeps fonts open."""
    command = [sys.executable, "-P", "-m", "pympsd", "plot", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def get_refusal(*arguments: str) -> str:
    """Run the command, which is refused; return what it says."""
    command = [sys.executable, "-P", "-c", PLOT_ON_A_FULL_DISK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode != 0, done.stdout) == (True, "")
    return done.stderr


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path: Path) -> None:
    write_slices(tmp_path / "t", [Written(1, 0, "kernel", 10**9, 10**9)])
    picture = tmp_path / "old.svg"
    picture.write_text("the old one")
    assert get_refusal(str(tmp_path / "t"), "-o", str(picture)) == f"{picture}: File too large\n"
    assert picture.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.svg", "t"]


def test_a_time_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    output = get_refusal(str(tmp_path / "t"), "--since", "100", "--until", "50")
    assert "--since 100 is not before --until 50" in output


def test_two_traces_make_one_picture(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.json", "two.json")]
    for number, path in enumerate(paths, 1):
        write_slices(path, [Written(number, 0, "kernel", 10**9 * number, 10**9)])
    assert plot(*map(str, paths)) == f"{tmp_path}/one.svg\n"
    picture = (tmp_path / "one.svg").read_text()
    assert all(title in picture for title in ("process 1: thread 0", "process 2: thread 0", "kernel"))
    plot(*map(str, paths), "-o", str(tmp_path / "two.png"))
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_any_name_is_drawn_as_text(tmp_path: Path, suffix: str) -> None:
    """A client chooses its command line and the names of its kernels."""
    names = ("a $\\frac{$ b", "\x1b[1m", "\udc80", "two\nlines", "<&>\0")
    trace = TraceFile.make(str(tmp_path / "t"))
    for pid, name in enumerate(names, 1):
        trace.name(pid, f"client {pid}: {name}")
        trace.name(pid, name, 2)
        trace.slice(pid, 2, name, 0, 10**9)
        trace.instant(pid, 2, name, 10**8)
    trace.close()
    picture = tmp_path / f"t{suffix}"
    assert plot(str(tmp_path / "t"), "-o", str(picture)) == f"{picture}\n"
    if suffix == ".svg":
        texts = [element.text for element in ElementTree.parse(picture).iter() if element.tag.endswith("}text")]
        assert [texts.count(printable(name)) for name in names] == [2] * len(names), "the slice and the event"


def test_traces_that_are_far_apart_have_a_panel_each(tmp_path: Path) -> None:
    hour = 3600 * 10**9
    text = write_slices(tmp_path / "t", [Written(1, 0, "early", 0, 10**9), Written(2, 0, "late", hour, 2 * 10**9)])
    assert busy_periods(read_tracks([text])) == [(0.0, 1000.0), (3600000.0, 3602000.0)]
    plot(str(tmp_path / "t"), "-o", str(tmp_path / "t.svg"))
    picture = (tmp_path / "t.svg").read_text()
    assert all(f'<g id="axes_{number}">' in picture for number in (1, 2))
    assert {"early", "late"} <= set(re.findall(r">([^<>]+)</text>", picture)), "both are wide enough for their names"


@given(SLICES)
def test_the_periods_hold_everything_and_never_overlap(
    tmp_path_factory: pytest.TempPathFactory, slices: list[Written]
) -> None:
    tracks = read_tracks([write_slices(tmp_path_factory.getbasetemp() / "periods.json", slices)])
    periods = busy_periods(tracks)
    assert 1 <= len(periods) <= MAX_PERIODS
    assert all(before[1] < after[0] for before, after in pairwise(periods))
    for entry in (piece for track in tracks for piece in track.slices):
        assert sum(began <= entry.began and entry.ended <= ended for began, ended in periods) == 1


def test_the_legend_is_next_to_the_data(tmp_path: Path) -> None:
    trace = TraceFile.make(str(tmp_path / "t"))
    for pid in range(1, 30):
        trace.name(pid, f"client {pid}: python")
        trace.slice(pid, 0, "kernel", 0, 10**9)
    trace.end()
    trace.close()
    plot(str(tmp_path / "t"), "-o", str(tmp_path / "t.svg"))
    picture = (tmp_path / "t.svg").read_text()
    panel = re.search(r'<g id="patch_2">\s*<path d="M ([\d.]+) [\d.]+\s*L ([\d.]+)', picture)
    legend = re.search(r'<g id="legend_1">\s*<g id="[^"]*">\s*<path d="M ([\d.]+)', picture)
    assert panel is not None
    assert legend is not None
    assert float(legend[1]) >= float(panel[2])


@pytest.mark.parametrize("argument", ["t.json", "--help"])
def test_output_that_cannot_be_printed_is_reported(tmp_path: Path, argument: str) -> None:
    write_slices(tmp_path / "t.json", [Written(1, 0, "kernel", 0, 10**6)])
    command = [sys.executable, "-P", "-m", "pympsd", "plot", argument]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    text = "standard output: No space left on device: not all could be printed\n"
    assert (done.returncode, done.stderr) == (74, text)
    assert (tmp_path / "t.svg").exists() == (argument == "t.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/none.json"], "{}/none.json: No such file or directory"),
        (["{}/bad.json"], "{}/bad.json: the file is not a trace of pympsd, whose first line is '['"),
        (["{}/t.json", "-o", "{}/t.doc"], "{}/t.doc: Format 'doc' is not supported"),
        (["{}/t.json", "--since", "5"], "{}/t.json: nothing happened in that time"),
    ],
)
def test_files_and_arguments_that_cannot_be_drawn_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "bad.json").write_text("not a trace")
    write_slices(tmp_path / "t.json", [Written(1, 0, "kernel", 0, 10**6)])
    assert main([argument.format(tmp_path) for argument in arguments]) == 1
    assert capsys.readouterr().err.startswith(message.format(tmp_path))
