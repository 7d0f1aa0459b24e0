"""The usage and the manual page are complete: every setting of the daemon, every option, every exit status."""

from __future__ import annotations

import inspect
import re

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


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_option_and_exit_status_is_there(text: str) -> None:
    for option in re.findall(r'"(--[a-z-]+)"', inspect.getsource(options.Options)):
        assert option in text or option == "--multiuser-server"
    for status in (control_client.UNREACHABLE, control_client.SILENT, control_client.NO_OUTPUT):
        assert re.search(rf"\b{status} when", text)
