"""The command line: every spelling and order of the options, and what it refuses."""

from __future__ import annotations

import itertools
import posix

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.cli.command_line import main
from pympsd.cli.options import MULTIUSER, READY, STARTS, STATIC, BadOption, Options
from pympsd.errors import BAD_USAGE
from pympsd.vocabulary.variables import DIALECTS, USERS


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("multiuser", [None, *MULTIUSER])
@pytest.mark.parametrize("ready", [None, "-q", READY])
def test_a_start_in_every_spelling_and_order(start: str, multiuser: str | None, ready: str | None) -> None:
    given_words = [word for word in (start, multiuser, ready) if word is not None]
    for words in itertools.permutations(given_words):
        options = Options(words)
        assert (options.start, options.multiuser, options.text, options.words) == (
            STARTS[start],
            multiuser is not None,
            "",
            [],
        )
        assert options.shown == ["pympsd", *words]


@given(
    st.permutations(
        [
            ["-d"],
            ["-M"],
            ["-q"],
            ["--strict"],
            ["--timeout", "2.5"],
            ["--log-dialect", "json"],
            ["--turn-patience", "7"],
            ["--users", "together"],
            ["--terminate-by-reset"],
        ],
    ),
    st.integers(0, 9),
)
def test_any_options_in_any_order(options: list[list[str]], kept: int) -> None:
    words = [word for option in options[:kept] for word in option]
    if "--terminate-by-reset" in words and "-d" not in words:
        with pytest.raises(BadOption, match="--terminate-by-reset goes with -d or -f"):
            Options(words)
        return
    read = Options(words)
    assert read.terminate_by_reset == ("--terminate-by-reset" in words)
    assert read.start == ("background" if "-d" in words else "")
    assert read.multiuser == ("-M" in words)
    assert read.strict == ("--strict" in words)
    assert read.timeout == (2.5 if "--timeout" in words else 10.0)
    assert read.dialect == ("json" if "json" in words else "")
    assert read.overtaking_seconds == (7.0 if "7" in words else None)
    assert read.users == ("together" if "--users" in words else "")
    assert read.words == []


@pytest.mark.parametrize(("word", "text"), [("-v", "v"), ("--version", "v"), ("-h", "h"), ("--help", "h")])
def test_version_and_help_win_over_a_start(word: str, text: str) -> None:
    for words in itertools.permutations(["-d", word, "-q"]):
        assert Options(words).text == text


def test_the_first_of_version_and_help_wins() -> None:
    assert Options(["-v", "-h"]).text == "v"
    assert Options(["-h", "-v"]).text == "h"


@pytest.mark.parametrize("words", [["--timeout=0.5"], ["--timeout", "0.5"]])
def test_a_value_follows_a_blank_or_an_equals_sign(words: list[str]) -> None:
    assert Options(words).timeout == 0.5


@pytest.mark.parametrize(("value", "seconds"), [("0", 0.0), ("0.25", 0.25), ("3600", 3600.0)])
def test_an_overtaking_limit_in_both_spellings(value: str, seconds: float) -> None:
    assert Options(["-d", f"--turn-patience={value}"]).overtaking_seconds == seconds
    assert Options(["--turn-patience", value, "-d"]).overtaking_seconds == seconds
    assert Options(["-d"]).overtaking_seconds is None


@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "inf", "1e9", "30s"])
def test_an_invalid_overtaking_limit_is_refused(value: str) -> None:
    with pytest.raises(BadOption, match="--turn-patience must be a number of seconds, 0 or more, not") as caught:
        Options(["-d", f"--turn-patience={value}"])
    assert not caught.value.unknown


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_in_both_spellings(dialect: str) -> None:
    assert Options([f"--log-dialect={dialect}"]).dialect == Options(["--log-dialect", dialect]).dialect == dialect


def test_words_are_a_command_with_its_own_options() -> None:
    options = Options(["--strict", "start_server", "-uid", "1000"])
    assert (options.strict, options.words) == (True, ["start_server", "-uid", "1000"])
    assert Options(["quit", "-t", "5"]).words == ["quit", "-t", "5"]
    assert Options(["shutdown_server", "5", "-f"]).start == ""


def test_a_start_ignores_words_as_recorded() -> None:
    options = Options(["-d", "extra", "-M"])
    assert (options.start, options.multiuser, options.words) == ("background", True, [])
    assert options.overlooked == ["extra"]
    assert Options(["-f", "get_server_list", "-q", "7"]).overlooked == ["get_server_list", "7"]
    assert Options(["-d", "--timeout", "7"]).overlooked == []
    assert Options(["get_server_status", "7"]).overlooked == []


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        (["--argv0=/usr/bin/nvidia-cuda-mps-control"], "nvidia-cuda-mps-control"),
        (["--argv0=nvidia-cuda-mps-control"], "nvidia-cuda-mps-control"),
        (["--argv0=/opt/pympsd"], "pympsd"),
        (["--argv0=other"], "pympsd"),
        ([], "pympsd"),
    ],
)
def test_the_name_it_was_started_under(launcher: list[str], name: str) -> None:
    options = Options([*launcher, "-d"])
    assert (options.name, options.shown, options.start) == (name, [name, "-d"], "background")


@pytest.mark.parametrize("word", ["-x", "-D", "--no-such", "-", "-dq", "--deamon"])
def test_an_unknown_option_is_refused_as_unknown(word: str) -> None:
    with pytest.raises(BadOption, match=f"there is no option {word}") as caught:
        Options([word])
    assert caught.value.unknown


@pytest.mark.parametrize("words", [["--timeout"], ["--timeout", "x"], ["--timeout=0"], ["--timeout=-1"]])
def test_a_timeout_is_a_number_of_seconds(words: list[str]) -> None:
    with pytest.raises(BadOption, match="--timeout must be a number of seconds above 0") as caught:
        Options(words)
    assert not caught.value.unknown


@pytest.mark.parametrize("value", ["nan", "inf", "1e9", "-inf"])
def test_a_timeout_is_finite(value: str) -> None:
    with pytest.raises(BadOption):
        Options([f"--timeout={value}"])


@pytest.mark.parametrize("value", USERS)
def test_users_in_both_spellings(value: str) -> None:
    assert Options(["-d", f"--users={value}"]).users == Options(["--users", value, "-d"]).users == value


@pytest.mark.parametrize("words", [["--users"], ["--users", "Together"], ["--users="], ["--users", "-d"]])
def test_users_are_one_of_two(words: list[str]) -> None:
    with pytest.raises(BadOption, match="--users must be one of in-turn, together, not"):
        Options(words)


@pytest.mark.parametrize("words", [["-p", "3"], ["-p3"], ["--protocol", "3"], ["--protocol=3"]])
def test_a_protocol_in_every_spelling(words: list[str]) -> None:
    options = Options([*words, "server", "list", "-p"])
    assert (options.protocol, options.words) == ("3", ["server", "list", "-p"])
    assert options.choose_protocol("") == "3"
    assert options.choose_protocol("2") == "2"
    assert Options([]).choose_protocol("") == "2"


def test_a_protocol_is_2_or_3() -> None:
    for words in (["-p", "4"], ["-p4"], ["--protocol=4"]):
        with pytest.raises(BadOption, match="--protocol must be 2 or 3, not '4'"):
            Options(words)
    with pytest.raises(BadOption, match="CUDA_MPS_PROTOCOL_VERSION must be 2 or 3, not 'x'"):
        Options([]).choose_protocol("x")


@pytest.mark.parametrize("words", [["-a", "F"], ["-aF"], ["--apply", "F"], ["--apply=F"]])
def test_a_file_in_every_spelling(words: list[str]) -> None:
    assert Options(words).apply == Options(["-d", *words]).apply == "F"
    with pytest.raises(BadOption, match="--apply needs the path"):
        Options([words[0], ""] if words[0] in ("-a", "--apply") else ["--apply="])
    with pytest.raises(BadOption, match="--apply takes no command"):
        Options([*words, "server"])
    for start in ([], ["-d"]):
        with pytest.raises(BadOption, match="--apply takes one file, not two: F and G"):
            Options([*start, *words, "-a", "G"])


@pytest.mark.parametrize("words", [["--driver", "580"], ["--driver=580"]])
def test_a_branch_of_the_driver_is_chosen_at_the_start(words: list[str]) -> None:
    assert Options(["-d", *words]).driver == 580
    assert Options(["-d"]).driver == 0
    with pytest.raises(BadOption, match="--driver goes with -d or -f"):
        Options([*words, "ps"])
    for value in ("", "600", "-d", "580.1"):
        with pytest.raises(BadOption, match="--driver must be one of 580, 590, not"):
            Options(["-d", f"--driver={value}"])


@pytest.mark.parametrize("word", STATIC)
@pytest.mark.parametrize("start", [["-d"], ["-f"], ["-d", "-q"], ["-d", "-p", "3"]])
def test_static_partitions_are_chosen_at_the_start(word: str, start: list[str]) -> None:
    for words in ([*start, word], [word, *start]):
        options = Options(words)
        assert (options.static, options.shown[1:]) == (word, words)
        options.check_start(options.choose_protocol(""))


@pytest.mark.parametrize("word", STATIC)
@pytest.mark.parametrize("launcher", [[], ["--argv0=nvidia-cuda-mps-control"]])
def test_static_partitions_are_not_chosen_later(
    word: str, launcher: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for words in ([word], [word, "lspart"]):
        assert main([*launcher, *words]) == BAD_USAGE
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == (
            "",
            f"{word} goes with -d or -f: a daemon has static SM partitions from its start\n",
        )


@pytest.mark.parametrize(
    ("words", "protocol", "message"),
    [
        (["-d", "-q"], "3", "-q quits a daemon in protocol 3; it does not go with -d or -f"),
        (["-d", "--open-queries"], "2", "--open-queries needs protocol 3"),
    ],
)
def test_what_a_protocol_cannot_be_started_with(words: list[str], protocol: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Options(words).check_start(protocol)
    Options(words).check_start("5" if protocol == "2" else "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-d", "--quit"], "--quit does not go with -d or -f"),
        (["--force"], "--force goes with -q"),
        (["-d", "-q", "--force"], "--force goes with -q"),
        (["--quit", "ps"], "--quit takes no command"),
        (["-q", "server", "list"], "-q takes no command"),
        (["-q", "-a", "F"], "-q takes no command and no file"),
    ],
)
def test_a_quit_goes_with_little(words: list[str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Options(words)
    assert Options(["-q", "--force"]).force


@pytest.mark.parametrize("words", [["--log-dialect"], ["--log-dialect", "R580"], ["--log-dialect="]])
def test_a_dialect_is_one_of_three(words: list[str]) -> None:
    with pytest.raises(BadOption, match="--log-dialect must be one of documented, r580, json"):
        Options(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-d", "--user", "together"], "there is no option --user; did you mean --users?\n"),
        (["-D"], "there is no option -D; did you mean -d?\n"),
        (["--deamon"], "there is no option --deamon; did you mean --daemon?\n"),
        (["--Strict", "ps"], "there is no option --Strict; did you mean --strict?\n"),
        (["--timeot=3", "ps"], "there is no option --timeot; did you mean --timeout?\n"),
        (["--trust-demon", "ps"], "there is no option --trust-demon; did you mean --trust-daemon?\n"),
        (["-d", "--users", "together", "-x"], "there is no option -x; "),
        (["--json", "ps"], "there is no option --json; --help lists them, and those of a command stand after it\n"),
    ],
)
def test_an_unknown_option_is_bad_usage_and_the_likely_one_is_suggested(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == BAD_USAGE
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace", "start", "--fil", "x"], "pympsd trace: there is no option --fil.\n"),
        (["trace", "--hepl"], "pympsd trace: there is no option --hepl; did you mean --help?\n"),
        (["trace", "stop", "-x"], "pympsd trace: there is no option -x.\n"),
    ],
)
def test_trace_has_no_options(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == BAD_USAGE
    assert capfd.readouterr() == ("", message)


def test_under_the_vendors_name_an_unknown_option_prints_the_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--argv0=nvidia-cuda-mps-control", "-d", "--user", "together"]) == 0
    captured = capfd.readouterr()
    assert captured.out.startswith("Unrecognized option \nCUDA MPS Control for Linux/Unix/QNX.\n")
    assert captured.err == "there is no option --user; did you mean --users?\n"


def test_a_bad_value_is_bad_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--timeout=x"]) == BAD_USAGE
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "--timeout must be a number of seconds above 0, not 'x'\n")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["-p", "3", "-a", "g.toml", "--prune"], "--prune"),
        (["-d", "-p", "3", "--bogus"], "--bogus"),
        (["--format=csv", "-p3", "server", "list"], "--format"),
        (["--bogus", "-x", "-d", "-p", "3"], "--bogus"),
    ],
)
def test_an_unknown_option_of_protocol_3_is_named_and_is_bad_usage(
    words: list[str], option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == BAD_USAGE
    text = f"there is no option {option}; --help lists them, and those of a command stand after it\n"
    assert capfd.readouterr() == ("", text)


def test_the_variable_of_the_protocol_makes_an_unknown_option_bad_usage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(posix.environ, b"CUDA_MPS_PROTOCOL_VERSION", b"3")
    assert main(["-d", "--bogus"]) == BAD_USAGE
    monkeypatch.setitem(posix.environ, b"CUDA_MPS_PROTOCOL_VERSION", b"2")
    assert main(["--argv0=nvidia-cuda-mps-control", "-d", "-p", "3", "--bogus"]) == 0
    assert capfd.readouterr().out.startswith("Unrecognized option \n")


def test_version_and_help_print_and_exit_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-d", "-v"]) == 0
    assert capfd.readouterr().out.startswith("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13010\n")
    assert main(["--argv0=nvidia-cuda-mps-control", "-h"]) == 0
    assert "usage: nvidia-cuda-mps-control [-d | -f]" in capfd.readouterr().out


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-d", "-f", "-M", "--timeout", "5", "ps"]), max_size=6))
def test_any_words_are_options_or_refused(words: list[str]) -> None:
    try:
        options = Options(words)
    except BadOption as error:
        assert str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert options.start in ("", "background", "foreground")
        assert options.start == "" or options.words == []


@pytest.mark.parametrize("words", [["-d", "-f"], ["-f", "-d"], ["-f", "--users", "together", "-d"]])
def test_a_daemon_is_started_in_one_way(words: list[str]) -> None:
    with pytest.raises(BadOption, match="give one of them"):
        Options(words)
    assert Options(["-d", "-d"]).start == "background"


def test_the_version_reports_a_driver_that_does_not_exist(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(posix.environ, b"PYMPSD_DRIVER", b"570")
    assert main(["-v"]) == 0
    printed = capfd.readouterr()
    assert "Binary version: 13010" in printed.out
    assert printed.err == "PYMPSD_DRIVER must be one of 580, 590, not '570'\n"
