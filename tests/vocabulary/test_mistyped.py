"""Suggestions for mistyped words, and the command lines that make them."""

from __future__ import annotations

import pytest

from pympsd.errors import BAD_USAGE
from pympsd.plot.program import main as plot
from pympsd.top.program import main as top
from pympsd.vocabulary.mistyped import Parser, find_similar, suggest
from pympsd_server.options import main as server


@pytest.mark.parametrize(
    ("word", "similar"),
    [("--user", "--users"), ("--USERS", "--users"), ("--usres", "--users"), ("-D", "-d"), ("--format", ""), ("", "")],
)
def test_the_word_that_was_probably_meant(word: str, similar: str) -> None:
    assert find_similar(word, ("--users", "-d", "--force")) == similar
    assert suggest(word, ("--users", "-d", "--force")) == (f"; did you mean {similar}?" if similar else ".")


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("top", ["--jsn"], "pympsd top: there is no option --jsn; did you mean --json?\n"),
        ("top", ["--once", "--nothing-like-it"], "pympsd top: there is no option --nothing-like-it.\n"),
        ("top", ["--sort", "nothing"], "pympsd top: argument --sort: invalid choice: 'nothing' (choose from "),
        ("plot", ["--sinze", "5"], "pympsd plot: there is no option --sinze; did you mean --since?\n"),
        ("plot", ["-O", "x.svg", "t.json"], "pympsd plot: there is no option -O; did you mean -o?\n"),
        ("plot", [], "pympsd plot: the following arguments are required: FILE\n"),
        ("server", ["--link-df=3"], "pympsd-server: there is no option --link-df; did you mean --link-fd?\n"),
        ("server", ["-x"], "pympsd-server: there is no option -x.\n"),
    ],
)
def test_a_mistyped_option_is_bad_usage_in_one_sentence(
    program: str, words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        {"top": lambda: top(words, 1.0), "plot": lambda: plot(words), "server": lambda: server(words)}[program]()
    captured = capfd.readouterr()
    assert (exited.value.code, captured.out) == (BAD_USAGE, "")
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


def test_a_word_that_is_not_an_option_is_read_as_before() -> None:
    parser = Parser()
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--number", type=int)
    parser.add_argument("-o")
    read = parser.parse_args(["--numb", "-5", "-ofile", "-", "--", "--unknown"])
    assert (read.number, read.o, read.rest) == (-5, "file", ["-", "--unknown"])
