"""The command line of pympsd-smi: each use that scripts make, and each refusal in nvidia-smi's words (recorded)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.smi.options import Action, SmiRequest, UnsupportedRequest, parse

CSV = frozenset({"csv"})


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("", SmiRequest()),
        ("-i 0", SmiRequest(ids="0")),
        ("-L", SmiRequest(Action.LIST)),
        ("--list-gpus", SmiRequest(Action.LIST)),
        ("-q", SmiRequest(Action.QUERY)),
        ("-q -d compute", SmiRequest(Action.QUERY, value="compute")),
        ("-i 0 -q -d COMPUTE", SmiRequest(Action.QUERY, "0", "COMPUTE")),
        ("--query --display=PIDS --id=1", SmiRequest(Action.QUERY, "1", "PIDS")),
        ("-c 3", SmiRequest(Action.SET_MODE, value="3")),
        ("-i 0,1,2,3 -c EXCLUSIVE_PROCESS", SmiRequest(Action.SET_MODE, "0,1,2,3", "EXCLUSIVE_PROCESS")),
        ("--compute-mode=DEFAULT -i 1", SmiRequest(Action.SET_MODE, "1", "DEFAULT")),
        ("--compute-mode DEFAULT", SmiRequest(Action.SET_MODE, None, "DEFAULT")),
        ("-i 0 -r", SmiRequest(Action.RESET, "0")),
        ("--query-gpu=index,uuid --format=csv", SmiRequest(Action.QUERY_GPU, None, "index,uuid", CSV)),
        ("--query-gpu=index --format=csv,noheader", SmiRequest(Action.QUERY_GPU, None, "index", CSV | {"noheader"})),
        ("--query-gpu=index", SmiRequest(Action.QUERY_GPU, None, "index")),
        ("--query-compute-apps=pid --format=csv", SmiRequest(Action.QUERY_APPS, None, "pid", CSV)),
        ("-h", SmiRequest(Action.HELP)),
        ("-L --help", SmiRequest(Action.HELP)),
        ("-q -x", SmiRequest(Action.QUERY, xml=True)),
        ("-q -d MEMORY -x -f out", SmiRequest(Action.QUERY, value="MEMORY", xml=True, file="out")),
        ("-l", SmiRequest(interval=5.0)),
        ("-l 2 -i 1", SmiRequest(ids="1", interval=2.0)),
        ("-l -i 1", SmiRequest(ids="1", interval=5.0)),
        ("--query-gpu=index -lms 250", SmiRequest(Action.QUERY_GPU, value="index", interval=0.25)),
        ("-pm 1", SmiRequest(Action.SET_PERSISTENCE, value="1")),
        ("--help-query-gpu", SmiRequest(Action.GPU_FIELDS)),
        ("--help-query-compute-apps", SmiRequest(Action.APP_FIELDS)),
        ("--version", SmiRequest(Action.VERSION)),
    ],
)
def test_every_use_of_scripts_is_parsed(line: str, request_: SmiRequest) -> None:
    assert parse(line.split()) == request_


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("--bogus", 255, "ERROR: Option --bogus is not recognized. Please run '{program} -h'.\n\n"),
        ("bogus", 255, "ERROR: Option bogus is not recognized. Please run '{program} -h'.\n\n"),
        ("-L=1", 255, "ERROR: Option -L=1 is not recognized. Please run '{program} -h'.\n\n"),
        ("-c=3", 255, "ERROR: Option -c=3 is not recognized. Please run '{program} -h'.\n\n"),
        ("-c", 255, "ERROR: Option -c is missing its value. Please run '{program} -h' for help.\n\n"),
        ("--id=", 255, "ERROR: Option --id is missing its value. Please run '{program} -h' for help.\n\n"),
        ("-i 0 -L", 2, "ERROR: Option -i is not valid for this command. Please run '{program} -h' for help.\n\n"),
        ("-d compute", 2, "ERROR: Option -d is not valid for this command. Please run '{program} -h' for help.\n\n"),
        ("-L -q", 2, "ERROR: Option -q is not valid for this command. Please run '{program} -h' for help.\n\n"),
        ("-x", 2, "ERROR: Option -x is not valid for this command. Please run '{program} -h' for help.\n\n"),
        ("-c 0 -l 1", 2, "ERROR: Option -l is not valid for this command."),
        ("-l 0", 2, "ERROR: Option -l takes a whole number above 0, not '0'."),
        ("-lms x", 2, "ERROR: Option -lms takes a whole number above 0, not 'x'."),
        ("-pl 300", 3, "ERROR: Option -pl is not supported by emulated GPUs.\n\n"),
        ("--power-limit=300", 3, "ERROR: Option --power-limit is not supported by emulated GPUs.\n\n"),
        ("-mig 1", 3, "ERROR: Option -mig is not supported by emulated GPUs.\n\n"),
        ("-q --format=csv", 2, "ERROR: Option --format is not valid for this command."),
        ("--query-gpu=index --format=bogus", 2, "Format modifier is not recognized.\n"),
        ("--query-gpu=index --format=csv,Noheader", 2, "Format modifier is not recognized.\n"),
    ],
)
def test_unsupported_requests_are_refused_as_recorded(line: str, status: int, message: str) -> None:
    with pytest.raises(UnsupportedRequest) as refused:
        parse(line.split())
    assert refused.value.status == status
    assert refused.value.text.startswith(message)


WORDS = st.sampled_from(["-i", "0", "-c", "3", "-q", "-d", "-L", "-r", "--format=csv", "--query-gpu=x", "=", ""])


@given(st.lists(st.text(max_size=8) | WORDS, max_size=6))
def test_any_line_is_a_request_or_refused(words: list[str]) -> None:
    try:
        request = parse(words)
    except UnsupportedRequest as refused:
        assert refused.status in (2, 3, 255)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert isinstance(request.action, Action)
