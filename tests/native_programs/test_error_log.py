"""The error log as it was recorded of a GPU: H200, driver 580.159, CUDA 13.0."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from processes import SECONDS

from tests.native_programs.conftest import Compile

MANY = 150
"""Calls that fail at the end of the program."""
PREFIX = re.compile(r"^\[\d\d:\d\d:\d\d\.\d{3}\]\[\d{15}\]\[CUDA\]\[E\] ", re.MULTILINE)
EARLY = """\
current: 0 0
cuMemAlloc_v2(&address, 0): 3
current: 0 0
cuLogsCurrent(NULL, 0): 1
cuLogsCurrent(&iterator, 1): 0
cuLogsRegisterCallback(hear, "one", &first): 0
heard one 0 1 callbackFunc cannot be NULL
heard one 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsRegisterCallback
cuLogsRegisterCallback(NULL, NULL, &other): 1
early: 0 size 341 length 341 iterator -1
Iterator cannot be NULL
Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsCurrent
callbackFunc cannot be NULL
Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsRegisterCallback
"""
"""Before cuInit: NOT_INITIALIZED is not logged."""
FAILED = """\
heard one 0 1 Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc_v2
cuMemAlloc_v2(&address, (size_t)1 << 50): 2
cuLogsRegisterCallback(hear, "two", &second): 0
cuLogsRegisterCallback(hear, "three", NULL): 0
heard one 0 1 REASON
heard two 0 1 REASON
heard three 0 1 REASON
heard one 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
heard two 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
cuMemAlloc_v2(&address, 0): 1
cuLogsUnregisterCallback(second): 0
heard one 0 1 REASON
heard three 0 1 REASON
heard one 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuModuleLoadData
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuModuleLoadData
cuModuleLoadData(&module, NULL): 1
current: 0 9
from 0: 0 size BYTES length BYTES iterator 9
again: 0 size 0 length 0 iterator 9
all: 0 size BYTES length BYTES iterator -1
cuLogsUnregisterCallback(first): 0
"""
"""A callback that is registered again gets each message again."""
SMALL = """\
small: 0 size 92 length 92 iterator 9
medium: 0 size 194 length 194 iterator 9
The provided buffer is not large enough to hold all messages. Some messages will be missing
Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuModuleLoadData
"""
"""The results and the first line are recorded. On a GPU the size is larger than the buffer, and the text cut off."""
REFUSED = """\
heard three 0 1 Provided buffer is not large enough to write any logs to
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory
tiny: 1 size 0 length 0 iterator 0
heard three 0 1 CUlogIterator is beyond the end of the logs
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory
beyond: 1 size 0 length 0 iterator 999999
heard three 0 1 REASON
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory
cuLogsDumpToMemory(NULL, NULL, &size, 0): 1
heard three 0 1 REASON
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory
cuLogsDumpToMemory(NULL, text, NULL, 0): 1
cuLogsDumpToMemory(NULL, text, &size, 1): 0
heard three 0 1 pathToFile cannot be NULL
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToFile
cuLogsDumpToFile(NULL, NULL, 0): 1
heard three 0 1 REASON
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToFile
cuLogsDumpToFile(NULL, "/nowhere/at/all", 0): 1
heard three 0 1 REASON
heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsUnregisterCallback
cuLogsUnregisterCallback(first): 1
"""
"""Unregistering again crashes the driver; NULL for a buffer or size was not asked of one."""


def test_calls_and_messages_are_as_recorded(
    compile_program: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [str(compile_program("logs")), str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    actual = PREFIX.sub("", ran.stdout).splitlines()
    expected = (EARLY + FAILED + SMALL + REFUSED).splitlines()
    for line, recorded in zip(actual, expected, strict=False):
        pattern = re.escape(recorded).replace("REASON", r"(?!Returning \d)\S.+").replace("BYTES", r"(\d{3})")
        match = re.fullmatch(pattern, line)
        assert match, f"{line!r}, recorded: {recorded!r}"
        assert len(set(match.groups())) <= 1
    # After that: the failures of MANY calls, each with two messages for one callback.
    assert (
        actual[len(expected) :][1::2]
        == ["heard three 0 1 Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemFree_v2"] * MANY
    )
    first, last = ((tmp_path / name).read_text() for name in ("first", "last"))
    assert len(PREFIX.findall(first)) == len(first.splitlines()) == 23
    assert "earlier messages were overwritten: the log keeps 100" in last
    assert len(PREFIX.findall(last)) == 100
