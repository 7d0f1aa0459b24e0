"""The driver functions: names, arguments and returns as in cuda.bindings.driver."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver as real

from pympsd.errors import InternalError
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client.signatures import SIGNATURES, Calling
from pympsd_client.signatures.rows import chapter

FUNCTIONS = [name for name in cuda._FUNCTIONS if hasattr(real, name)]


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_arguments_are_those_of_cuda_bindings(name: str) -> None:
    ours, theirs = _names(getattr(cuda, name)), _names(getattr(real, name))
    if name == "cuCtxCreate" and "ctxCreateParams" not in theirs:  # cuda-bindings 12: ours takes both forms
        theirs = ["ctxCreateParams", *theirs]
    assert ours == theirs


def _outputs(name: str) -> int:
    if name.startswith("cuCoredump"):  # what it returns has no size, whatever its documentation says
        return int("Get" in name)
    documented = (getattr(real, name).__doc__ or "").split("Returns\n")[-1].split("See Also")[0]
    lines = [line.strip() for line in documented.splitlines()]
    return sum(1 for line in lines if " : " in line and not line.startswith(":py"))


def _needs_init(name: str) -> bool:
    return SIGNATURES[name].calling not in (Calling.BEFORE_INIT, Calling.ANYWHERE)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if _needs_init(name)])
def test_every_call_before_cuinit_fails_with_none_for_each_output(name: str, fresh_process: object) -> None:
    passed = {"char *": b"x", "void *": 0, "void **": 0}
    arguments = [passed.get(item.type, None if item.type.endswith("*") else 0) for item in SIGNATURES[name].inputs]
    answer = getattr(cuda, name)(*arguments)
    assert answer == (cuda.CUresult.CUDA_ERROR_NOT_INITIALIZED, *(None,) * _outputs(name))
    assert "cuInit" in last_error()


def test_the_version_is_known_before_cuinit() -> None:
    assert cuda.cuDriverGetVersion() == (cuda.CUresult.CUDA_SUCCESS, 13010)


def test_cuinit_takes_no_flags(fresh_process: object) -> None:
    assert cuda.cuInit(1) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)
    assert "0, not 1" in last_error()


@pytest.mark.parametrize("result", list(real.CUresult), ids=lambda result: result.name)
def test_every_result_has_its_name_and_a_description(result: Any) -> None:
    assert cuda.cuGetErrorName(result) == (cuda.CUresult.CUDA_SUCCESS, result.name.encode())
    code, text = cuda.cuGetErrorString(int(result))
    assert code == cuda.CUresult.CUDA_SUCCESS
    assert text
    assert b":py:" not in text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, b"no error"),
        (101, b"invalid device ordinal"),
        (209, b"no kernel image is available for execution on the device"),
        (700, b"an illegal memory access was encountered"),
        (999, b"unknown error"),
    ],
)
def test_descriptions_are_the_drivers(code: int, text: bytes) -> None:
    assert cuda.cuGetErrorString(cuda.CUresult(code)) == (cuda.CUresult.CUDA_SUCCESS, text)


def test_a_number_that_is_not_a_result_has_no_name() -> None:
    assert cuda.cuGetErrorName(123456) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)
    assert cuda.cuGetErrorString(-1) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)


@pytest.mark.parametrize(
    "name",
    ["CUresult", "CUdevice_attribute", "CUdeviceptr", "CUstream_flags", "CUuuid", "CU_STREAM_PER_THREAD"],
)
def test_enums_types_and_constants_are_those_of_cuda_bindings(name: str) -> None:
    assert getattr(cuda, name) is getattr(real, name)
    assert name in dir(cuda)


def test_a_function_that_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match="pympsd does not have cuArrayGetPlane yet") as caught:
        _ = cuda.cuArrayGetPlane
    assert "(the nearest names it has: " in str(caught.value)
    assert "cuArray" in str(caught.value).partition("nearest")[2]
    assert str(caught.value).endswith("docs/differences.md lists what is missing")
    assert len(str(caught.value)) < 250
    assert "cuArrayGetPlane" not in dir(cuda)
    assert not hasattr(cuda, "cuNoSuchThing")
    assert not hasattr(cuda, "_driver")


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_row_names_a_core_that_takes_what_it_lists(name: str) -> None:
    signature = SIGNATURES[name]
    core = signature.find_core()
    if "*" not in signature.arguments:
        listed = ast.parse(f"core({signature.arguments})", mode="eval").body
        assert isinstance(listed, ast.Call)
        inspect.signature(core).bind(*listed.args)
    assert core.__doc__


@pytest.mark.parametrize("module", ["_objects.memory", "_objects.no_such_module"])
def test_the_error_about_a_row_without_a_core_names_the_row_the_module_and_the_recipe(module: str) -> None:
    (row,) = chapter(module, "cuMemFill(CUdeviceptr dptr) = no_such_core")
    message = f"cuMemFill names the core no_such_core, which pympsd_client.{module} does not define"
    with pytest.raises(InternalError, match=f"{message}.*CONTRIBUTING.md, 'A driver function'"):
        row.find_core()
    assert "### A driver function" in (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_parameters_and_outputs_of_the_driver(name: str) -> None:
    assert len(SIGNATURES[name].outputs) == _outputs(name)
    assert getattr(cuda, name).__doc__


def test_the_message_about_a_missing_function_points_to_a_document_about_it() -> None:
    assert "- **Part of the driver API**" in (Path(__file__).parents[2] / "docs" / "differences.md").read_text()


def test_a_star_brings_functions_types_and_constants() -> None:
    imported: dict[str, Any] = {}
    exec("from pympsd_client.driver import *", imported)
    for name in ("CUresult", "CUdeviceptr", "CUdevice_attribute", "CU_STREAM_PER_THREAD"):
        assert imported[name] is getattr(real, name)
    assert all(imported[name] is getattr(cuda, name) for name in FUNCTIONS)
    assert "cuArrayGetPlane" not in imported
    assert sorted(dir(cuda)) == sorted(cuda.__all__)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: cuda.cuMemAlloc("x"), TypeError),
        (lambda: cuda.cuMemAlloc(-1), OverflowError),
        (lambda: cuda.cuMemsetD8(0, 256, 1), OverflowError),
        (lambda: cuda.cuGetErrorName("x"), TypeError),
    ],
)
def test_an_argument_that_is_not_a_number_raises_as_in_cuda_bindings(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_importing_the_driver_functions_loads_neither_trio_nor_structlog_nor_numpy() -> None:
    program = (
        "import sys; import pympsd_client; assert 'cuda' not in sys.modules; from pympsd_client import driver; "
        "print(sorted({'trio', 'structlog', 'numpy', 'pympsd_server'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
