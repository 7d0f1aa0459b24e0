"""The usage and the manual page are complete: every setting of the daemon, every option, every exit status."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pympsd.cli import control_client, options
from pympsd.commands.manual import usage
from pympsd.vocabulary.variables import EXPLAIN, VARIABLES, Reader

NAME = re.compile(r"\b(?:CUDA|NVIDIA|PYMPSD)_[A-Z_]+[A-Z]\b")
ROOT = Path(__file__).parents[2]
TEXTS = {"usage": usage("pympsd"), "manual page": (ROOT / "docs/man/pympsd.1").read_text().replace("\\-", "-")}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_variable_the_daemon_reads_is_there(text: str) -> None:
    read = {entry.name for entry in VARIABLES if Reader.DAEMON in entry.readers}
    assert read - set(NAME.findall(text)) == set()


def test_every_variable_is_in_its_table_and_in_the_manual_pages() -> None:
    table = (ROOT / "docs/settings.md").read_text()
    assert all(f"\n| `{entry.name}` | " in table for entry in VARIABLES)
    assert {entry.name for entry in VARIABLES} - set(NAME.findall(TEXTS["manual page"])) == set()
    page = (ROOT / "docs/man/pympsd-smi.1").read_text()
    assert {entry.name for entry in VARIABLES if Reader.SMI in entry.readers} - set(NAME.findall(page)) == set()
    assert EXPLAIN in (ROOT / "docs/man/pympsd-run.1").read_text()


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
        assert re.search(rf"\b{status} if", text)
