"""Libraries and kernels, functions and their parameters, on a real emulated device."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok

PTX_FILE = Path(__file__).with_name("kernels.ptx")
PTX = PTX_FILE.read_bytes()
Attribute = cuda.CUfunction_attribute
Option = cuda.CUjit_option
DYNAMIC = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def _load(code: Any = PTX, options: Any = (), values: Any = ()) -> Any:
    return ok(cuda.cuLibraryLoadData(code, list(options), list(values), len(options), [], [], 0))


@pytest.fixture
def library(context: Any) -> Any:
    """Load the tests' kernels."""
    return _load()


def _kernel(library: Any, name: bytes = b"store") -> Any:
    return ok(cuda.cuLibraryGetKernel(library, name))


def _check_failed(answer: tuple[Any, ...], name: str) -> None:
    assert answer[0].name == f"CUDA_ERROR_{name}", answer


def _store(function: Any, stream: Any = 0, value: int = 7, out: Any = None) -> int:
    out = out or ok(cuda.cuMemAlloc(4))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ((out, value), (None, ctypes.c_uint)), 0))
    ok(cuda.cuStreamSynchronize(stream))
    result = np.zeros(1, np.uint32)
    ok(cuda.cuMemcpyDtoH(result, out, 4))
    return int(result[0])


def test_a_kernel_is_launched_by_its_handle_and_by_its_functions(library: Any) -> None:
    kernel = _kernel(library)
    for value in range(1, 6):  # the launch cache is used from the third on
        assert _store(cuda.CUfunction(int(kernel)), value=value) == value
    assert _store(ok(cuda.cuKernelGetFunction(kernel)), value=9) == 9
    assert int(ok(cuda.cuKernelGetLibrary(kernel))) == int(library)
    assert ok(cuda.cuKernelGetName(kernel)) == b"store"
    assert int(_kernel(library)) == int(kernel)


def test_a_library_is_a_module_in_every_context(library: Any) -> None:
    kernel = cuda.CUfunction(int(_kernel(library)))
    first = ok(cuda.cuCtxGetCurrent())
    module, count = ok(cuda.cuLibraryGetModule(library)), ok(cuda.cuLibraryGetGlobal(library, b"counter"))
    assert int(ok(cuda.cuModuleGetGlobal(module, b"counter"))[0]) == int(count[0])
    for device in (0, 1):
        ok(cuda.cuCtxCreate(None, 0, device))
        assert _store(kernel, value=device + 5) == device + 5
        other = ok(cuda.cuLibraryGetModule(library))
        assert int(other) != int(module)
        assert int(ok(cuda.cuLibraryGetGlobal(library, b"counter"))[0]) != int(count[0])
        assert int(ok(cuda.cuFuncGetModule(kernel))) == int(other)
        ok(cuda.cuCtxPopCurrent())
    assert int(ok(cuda.cuCtxGetCurrent())) == int(first)
    assert int(ok(cuda.cuLibraryGetModule(library))) == int(module)


def test_a_kernel_runs_in_the_context_of_its_stream(library: Any) -> None:
    stream, out = ok(cuda.cuStreamCreate(0)), ok(cuda.cuMemAlloc(4))
    ok(cuda.cuCtxCreate(None, 0, 1))
    assert _store(cuda.CUfunction(int(_kernel(library))), stream, 3, out) == 3


def test_a_library_names_its_kernels_without_a_context(devices: None) -> None:
    library = _load()
    assert ok(cuda.cuLibraryGetKernelCount(library)) >= 4
    kernel = _kernel(library)
    _check_failed(cuda.cuKernelGetParamCount(kernel), "INVALID_CONTEXT")
    _check_failed(cuda.cuKernelGetParamInfo(kernel, 0), "INVALID_CONTEXT")
    assert ok(cuda.cuKernelGetAttribute(Attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 1)) == 1024
    _check_failed(cuda.cuKernelGetFunction(kernel), "INVALID_CONTEXT")
    _check_failed(cuda.cuLibraryGetModule(library), "INVALID_CONTEXT")
    _check_failed(cuda.cuLibraryGetGlobal(library, b"counter"), "INVALID_CONTEXT")
    assert int(ok(cuda.cuCtxGetCurrent())) == 0
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert _store(ok(cuda.cuKernelGetFunction(kernel))) == 7
    ok(cuda.cuLibraryUnload(library))


def test_a_primary_context_that_is_reset_loads_it_again(devices: None) -> None:
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    library = _load()
    function = ok(cuda.cuKernelGetFunction(_kernel(library)))
    ok(cuda.cuDevicePrimaryCtxReset(0))
    ok(cuda.cuDevicePrimaryCtxRetain(0))
    _check_failed(cuda.cuFuncGetName(function), "INVALID_HANDLE")
    assert _store(ok(cuda.cuKernelGetFunction(_kernel(library)))) == 7
    for _ in range(2):
        ok(cuda.cuDevicePrimaryCtxRelease(0))


def test_kernels_and_functions_are_listed_in_order(library: Any) -> None:
    module = ok(cuda.cuLibraryGetModule(library))
    count = ok(cuda.cuLibraryGetKernelCount(library))
    assert count == ok(cuda.cuModuleGetFunctionCount(module))
    kernels = ok(cuda.cuLibraryEnumerateKernels(count, library))
    functions = ok(cuda.cuModuleEnumerateFunctions(count, module))
    names = [ok(cuda.cuKernelGetName(item)) for item in kernels]
    assert names[:2] == [b"add", b"keep"]
    assert names == [ok(cuda.cuFuncGetName(item)) for item in functions]
    assert len(ok(cuda.cuLibraryEnumerateKernels(2, library))) == 2
    assert len(ok(cuda.cuModuleEnumerateFunctions(1 << 31, module))) == count
    assert ok(cuda.cuLibraryEnumerateKernels(0, library)) == []
    assert ok(cuda.cuModuleEnumerateFunctions(0, module)) == []


def test_null_has_no_name(library: Any) -> None:
    _check_failed(cuda.cuKernelGetName(0), "INVALID_VALUE")
    _check_failed(cuda.cuFuncGetName(0), "INVALID_VALUE")
    _check_failed(cuda.cuKernelGetName(5), "INVALID_HANDLE")
    _check_failed(cuda.cuFuncGetName(5), "INVALID_HANDLE")


def test_the_parameters_of_a_kernel(library: Any) -> None:
    kernel = _kernel(library, b"keep")
    function = ok(cuda.cuKernelGetFunction(kernel))
    assert ok(cuda.cuFuncGetParamCount(function)) == ok(cuda.cuKernelGetParamCount(kernel)) == 6
    expected = [(0, 8), (8, 1), (16, 8), (24, 2), (28, 4), (32, 8)]
    assert [tuple(ok(cuda.cuKernelGetParamInfo(kernel, index))) for index in range(6)] == expected
    assert [tuple(ok(cuda.cuFuncGetParamInfo(function, index))) for index in range(6)] == expected
    for index in (6, (1 << 64) - 1):
        _check_failed(cuda.cuKernelGetParamInfo(kernel, index), "INVALID_VALUE")
        _check_failed(cuda.cuFuncGetParamInfo(function, index), "INVALID_VALUE")


def test_an_attribute_of_a_kernel_holds_in_all_contexts_of_its_device(library: Any) -> None:
    kernel = _kernel(library)
    function = ok(cuda.cuKernelGetFunction(kernel))
    ok(cuda.cuKernelSetAttribute(DYNAMIC, 100_000, kernel, 0))
    assert ok(cuda.cuKernelGetAttribute(DYNAMIC, kernel, 0)) == 100_000
    assert ok(cuda.cuKernelGetAttribute(DYNAMIC, kernel, 1)) == 49152
    assert ok(cuda.cuFuncGetAttribute(DYNAMIC, function)) == 100_000
    for device, expected in ((0, 100_000), (1, 49152)):
        ok(cuda.cuCtxCreate(None, 0, device))
        assert ok(cuda.cuFuncGetAttribute(DYNAMIC, cuda.CUfunction(int(kernel)))) == expected
    _check_failed(cuda.cuKernelSetAttribute(DYNAMIC, 1 << 30, kernel, 0), "INVALID_VALUE")
    _check_failed(cuda.cuKernelSetAttribute(DYNAMIC, -1, kernel, 0), "INVALID_VALUE")
    _check_failed(cuda.cuKernelSetAttribute(DYNAMIC, 0, kernel, 2), "INVALID_DEVICE")
    _check_failed(cuda.cuKernelGetAttribute(DYNAMIC, kernel, -1), "INVALID_DEVICE")
    _check_failed(cuda.cuKernelSetAttribute(Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, 1, kernel, 0), "INVALID_VALUE")


def test_occupancy_and_hints_take_kernels_too(library: Any) -> None:
    kernel = cuda.CUfunction(int(_kernel(library)))
    assert ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 1024, 0)) == 2
    ok(cuda.cuFuncSetCacheConfig(kernel, cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))
    ok(cuda.cuKernelSetCacheConfig(cuda.CUkernel(int(kernel)), cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1, 0))
    assert ok(cuda.cuFuncIsLoaded(kernel)) == cuda.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED
    ok(cuda.cuFuncLoad(kernel))
    assert ok(cuda.cuModuleGetLoadingMode()) == cuda.CUmoduleLoadingMode.CU_MODULE_LAZY_LOADING


def test_names_that_a_library_lacks_are_not_found(library: Any) -> None:
    _check_failed(cuda.cuLibraryGetKernel(library, b"absent"), "NOT_FOUND")
    assert "it has add" in last_error()
    _check_failed(cuda.cuLibraryGetGlobal(library, b"absent"), "NOT_FOUND")
    _check_failed(cuda.cuLibraryGetManaged(library, b"counter"), "NOT_FOUND")
    _check_failed(cuda.cuLibraryGetUnifiedFunction(library, b"add"), "INVALID_VALUE")


def test_handles_of_an_unloaded_library(library: Any) -> None:
    kernel = _kernel(library)
    function, module = ok(cuda.cuKernelGetFunction(kernel)), ok(cuda.cuLibraryGetModule(library))
    _check_failed(cuda.cuModuleUnload(module), "NOT_PERMITTED")
    assert _store(function) == 7
    ok(cuda.cuLibraryUnload(library))
    for answer in (
        cuda.cuLibraryUnload(library),
        cuda.cuLibraryGetKernel(library, b"store"),
        cuda.cuLibraryGetKernelCount(library),
        cuda.cuLibraryEnumerateKernels(1, library),
        cuda.cuLibraryGetModule(library),
        cuda.cuLibraryGetGlobal(library, b"counter"),
        cuda.cuLibraryGetManaged(library, b"counter"),
        cuda.cuLibraryGetUnifiedFunction(library, b"counter"),
        cuda.cuKernelGetFunction(kernel),
        cuda.cuKernelGetLibrary(kernel),
        cuda.cuKernelGetName(kernel),
        cuda.cuKernelGetAttribute(DYNAMIC, kernel, 0),
        cuda.cuKernelSetAttribute(DYNAMIC, 0, kernel, 0),
        cuda.cuKernelSetCacheConfig(kernel, cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1, 0),
        cuda.cuKernelGetParamInfo(kernel, 0),
        cuda.cuKernelGetParamCount(kernel),
        cuda.cuFuncGetName(function),
        cuda.cuFuncGetModule(function),
        cuda.cuFuncGetParamInfo(function, 0),
        cuda.cuFuncGetParamCount(function),
        cuda.cuFuncIsLoaded(function),
        cuda.cuFuncLoad(function),
        cuda.cuFuncSetCacheConfig(function, cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1),
        cuda.cuModuleGetFunctionCount(module),
        cuda.cuModuleEnumerateFunctions(1, module),
        cuda.cuLaunchKernel(cuda.CUfunction(int(kernel)), 1, 1, 1, 1, 1, 1, 0, 0, None, 0),
    ):
        _check_failed(answer, "INVALID_HANDLE")


@pytest.mark.parametrize(("code", "result"), [(None, "INVALID_VALUE"), (b"", "INVALID_IMAGE")])
def test_data_that_is_not_an_image_is_refused_immediately(context: Any, code: Any, result: str) -> None:
    _check_failed(cuda.cuLibraryLoadData(code, [], [], 0, [], [], 0), result)


def test_kernels_of_a_large_library(devices: None) -> None:
    library = _load(PTX + b".visible .entry broken() { bra nowhere; }\n" + b"// what makes it large\n" * 4000)
    kernel, broken = _kernel(library), _kernel(library, b"broken")  # without a context
    assert ok(cuda.cuKernelGetAttribute(DYNAMIC, kernel, 1)) == 49152
    _check_failed(cuda.cuKernelGetAttribute(DYNAMIC, broken, 1), "INVALID_PTX")
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert ok(cuda.cuKernelGetParamCount(kernel)) == 2
    _check_failed(cuda.cuKernelGetParamCount(broken), "INVALID_PTX")
    ok(cuda.cuKernelSetAttribute(DYNAMIC, 100_000, kernel, 0))
    function = ok(cuda.cuKernelGetFunction(kernel))
    assert ok(cuda.cuFuncGetAttribute(DYNAMIC, function)) == 100_000
    _check_failed(cuda.cuKernelGetFunction(broken), "INVALID_PTX")
    assert _store(function) == 7


def test_bad_ptx_is_refused_when_it_is_used_first(devices: None) -> None:
    library = _load(b".version 7.0\n.target sm_70\n.bad")  # as the driver does, with a context and without one
    _check_failed(cuda.cuLibraryGetKernel(library, b"add"), "INVALID_PTX")
    ok(cuda.cuCtxCreate(None, 0, 0))
    _check_failed(cuda.cuLibraryGetModule(library), "INVALID_PTX")
    ok(cuda.cuLibraryUnload(library))


def test_logs_and_options(context: Any) -> None:
    log = bytearray(200)
    options = [Option.CU_JIT_ERROR_LOG_BUFFER, Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    answer = cuda.cuLibraryLoadData(b".version 7.0\n.target sm_70\n.bad", options, [log, 200], 2, [], [], 0)
    _check_failed(answer, "INVALID_PTX")
    assert log.startswith(b"ptxas application ptx input, line 3; error   : ")
    limited = _load(PTX, [Option.CU_JIT_MAX_REGISTERS], [8])
    registers = Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert ok(cuda.cuKernelGetAttribute(registers, _kernel(limited, b"add"), 0)) == 8
    assert ok(cuda.cuKernelGetAttribute(registers, _kernel(_load(), b"add"), 0)) > 8
    preserved = cuda.CUlibraryOption.CU_LIBRARY_BINARY_IS_PRESERVED
    ok(cuda.cuLibraryLoadData(PTX, [], [], 0, [preserved], [1], 1))
    table = cuda.CUlibraryOption.CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE
    _check_failed(cuda.cuLibraryLoadData(PTX, [], [], 0, [table], [0], 1), "NOT_SUPPORTED")
    _check_failed(cuda.cuLibraryLoadData(PTX, [], [], 0, [], [], 1), "INVALID_VALUE")
    _check_failed(cuda.cuLibraryLoadData(PTX, [], [], 1, [], [], 0), "INVALID_VALUE")


def test_options_as_arrays_of_c(context: Any) -> None:
    error, info = ctypes.create_string_buffer(100), ctypes.create_string_buffer(100)
    names = [
        Option.CU_JIT_ERROR_LOG_BUFFER,
        Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        Option.CU_JIT_INFO_LOG_BUFFER,
        Option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
    ]
    options = (ctypes.c_int * 4)(*map(int, names))
    values = (ctypes.c_uint64 * 4)(ctypes.addressof(error), 20, ctypes.addressof(info), 100)
    places = ctypes.addressof(options), ctypes.addressof(values), 4
    _check_failed(cuda.cuLibraryLoadData(b".version 7.0\n.target sm_70\n.bad", *places, 0, 0, 0), "INVALID_PTX")
    assert error.value == b"ptxas application p"
    assert list(values)[1::2] == [19, 0]
    _check_failed(cuda.cuLibraryLoadData(PTX, 0, 0, 1, 0, 0, 0), "INVALID_VALUE")
    ok(cuda.cuLibraryLoadData(PTX, 0, 0, 0, 0, 0, 0))


def test_a_library_is_loaded_from_a_file(context: Any, tmp_path: Path) -> None:
    library = ok(cuda.cuLibraryLoadFromFile(str(PTX_FILE).encode(), [], [], 0, [], [], 0))
    assert _store(cuda.CUfunction(int(_kernel(library)))) == 7
    absent = str(tmp_path / "absent.ptx").encode()
    _check_failed(cuda.cuLibraryLoadFromFile(absent, [], [], 0, [], [], 0), "FILE_NOT_FOUND")


def test_a_library_can_be_unloaded_after_a_fault(library: Any) -> None:
    kernel = cuda.CUfunction(int(_kernel(library)))
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    types = (ctypes.c_void_p, ctypes.c_uint)
    ok(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((16, 1), types), 0))
    _check_failed(cuda.cuCtxSynchronize(), "ILLEGAL_ADDRESS")
    _check_failed(cuda.cuLibraryGetModule(library), "ILLEGAL_ADDRESS")
    ok(cuda.cuCtxPopCurrent())
    _check_failed(cuda.cuLibraryGetModule(library), "ILLEGAL_ADDRESS")
    ok(cuda.cuCtxDestroy(other))
    ok(cuda.cuLibraryUnload(library))
