"""Images of machine code, as compilers make them, loaded and run through a client; all other tests load PTX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from processes import ClientProcess

IMAGES = Path(__file__).parents[1] / "data" / "images"


@pytest.fixture
def client(start: Callable[..., ClientProcess]) -> ClientProcess:
    """Start a client of the daemon that runs the given image."""
    return start()


@pytest.mark.parametrize("name", ["linked.fatbin", "several.fatbin"])
def test_a_fatbin_is_loaded_and_run(client: ClientProcess, name: str) -> None:
    assert client.call(f"image {IMAGES / name}") == "CUDA_SUCCESS wrong=0"


def test_a_cubin_of_this_gpus_architecture_and_no_other(client: ClientProcess) -> None:
    answers = [client.call(f"image {path}") for path in sorted(IMAGES.glob("linked-*.cubin"))]
    assert sorted(answers) == ["CUDA_ERROR_NO_BINARY_FOR_GPU"] * 2 + ["CUDA_SUCCESS wrong=0"], (
        "tests/data/images/compile can make one for this GPU"
    )


def test_dynamic_parallelism_is_refused_by_name(client: ClientProcess) -> None:
    assert client.call(f"image {IMAGES / 'nested.cubin'}") == "CUDA_ERROR_NOT_SUPPORTED"
    assert "__cudaCDP2GetParameterBufferV2 is a function of the device runtime" in client.call("error")
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
