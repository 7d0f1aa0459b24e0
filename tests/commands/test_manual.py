"""The usage and the manual page are complete: every setting of the daemon, every option, every exit status."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pympsd import control_client, options
from pympsd.commands.manual import man_page, usage
from pympsd.vocabulary import files, settings

NAME = re.compile(r"\b(?:CUDA|PYMPSD)_[A-Z_]+[A-Z]\b")
ALIASES = {"CUDA_MPS_DEVICE_MEM_LIMIT"}
TEXTS = {"usage": usage("pympsd"), "manual page": man_page().replace("\\-", "-")}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_variable_the_daemon_reads_is_there(text: str) -> None:
    read = set(NAME.findall(inspect.getsource(settings) + inspect.getsource(files))) - ALIASES
    assert len(read) > 8
    assert read - set(NAME.findall(text)) == set()


def test_every_variable_of_the_readme_is_in_the_manual_page() -> None:
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `")]
    listed = set(NAME.findall(" ".join(rows)))
    assert "PYMPSD_TRACE" in listed
    assert listed - set(NAME.findall(TEXTS["manual page"])) == set()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["top", "plot", "trace start", "trace stop", "rules list"])
def test_every_tool_and_module_of_both_protocols_is_there(text: str, name: str) -> None:
    before = text.partition("COMMANDS OF PROTOCOL 3")[0]
    assert re.search(rf"^( *|\.B )(pympsd )?{name}\b", before, re.MULTILINE)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_option_and_exit_status_is_there(text: str) -> None:
    for option in re.findall(r'"(--[a-z-]+)"', inspect.getsource(options.Options)):
        assert option in text or option == "--multiuser-server"
    for status in (control_client.UNREACHABLE, control_client.SILENT, control_client.NO_OUTPUT):
        assert re.search(rf"\b{status} when", text)
