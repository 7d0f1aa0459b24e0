"""Modules, launches and kernel parameters on a real emulated device."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok

PTX_FILE = Path(__file__).with_name("kernels.ptx")
PTX = PTX_FILE.read_bytes()
INVALID_VALUE = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)
Attribute = cuda.CUfunction_attribute
Option = cuda.CUjit_option


@pytest.fixture
def module(context: Any) -> Any:
    """Load the tests' kernels."""
    return ok(cuda.cuModuleLoadData(PTX))


def _function(module: Any, name: bytes) -> Any:
    return ok(cuda.cuModuleGetFunction(module, name))


def _launch(function: Any, parameters: Any, extra: int = 0, grid: int = 1, block: int = 1) -> tuple[Any, ...]:
    answer: tuple[Any, ...] = cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, 0, parameters, extra)
    return answer


def test_vectors_are_added(module: Any) -> None:
    count = 100_003
    a, b = (np.random.default_rng(seed).random(count, dtype=np.float32) for seed in (1, 2))
    c = np.zeros_like(a)
    on_device = [ok(cuda.cuMemAlloc(a.nbytes)) for _ in range(3)]
    for address, array in zip(on_device, (a, b), strict=False):
        ok(cuda.cuMemcpyHtoD(address, array, array.nbytes))
    parameters = ((*on_device, count), (None, None, None, ctypes.c_uint))
    ok(_launch(_function(module, b"add"), parameters, grid=-(-count // 256), block=256))
    ok(cuda.cuMemcpyDtoH(c, on_device[2], c.nbytes))
    assert (c == a + b).all()


# --- parameters: out, u8, f64, u16, f32, s64 at offsets 0, 8, 16, 24, 28, 32

FLAT = struct.Struct("=QB7xdH2xfq")
STORED = struct.Struct("=B7xdH2xfq")
VALUES = (200, -2.5, 60000, 0.25, -7)
TYPES = (ctypes.c_ubyte, ctypes.c_double, ctypes.c_ushort, ctypes.c_float, ctypes.c_longlong)


def _as_values(out: Any) -> tuple[Any, int, Any]:
    return ((int(out), *VALUES), (ctypes.c_void_p, *TYPES)), 0, None


def _as_handles(out: Any) -> tuple[Any, int, Any]:
    return ((out, *VALUES), (None, *TYPES)), 0, None


def _as_a_handle_of_void_p(out: Any) -> tuple[Any, int, Any]:
    return ((out, *VALUES), (ctypes.c_void_p, *TYPES)), 0, None


def _as_ctypes_and_numpy(out: Any) -> tuple[Any, int, Any]:
    numbers = (np.uint8(200), ctypes.c_double(-2.5), np.uint16(60000), np.float32(0.25), np.int64(-7))
    values = (ctypes.c_void_p(int(out)), *numbers)
    return (values, (ctypes.c_void_p, *TYPES)), 0, None


def _as_wider_ctypes(out: Any) -> tuple[Any, int, Any]:
    types = (ctypes.c_size_t, ctypes.c_uint, ctypes.c_double, ctypes.c_int, ctypes.c_float, ctypes.c_long)
    return ((int(out), *VALUES), types), 0, None


def _places(out: Any) -> list[Any]:
    return [kind(value) for kind, value in zip((ctypes.c_uint64, *TYPES), (int(out), *VALUES), strict=True)]


def _as_pointer_array(out: Any) -> tuple[Any, int, Any]:
    places = _places(out)
    pointers = (ctypes.c_void_p * len(places))(*map(ctypes.addressof, places))
    return ctypes.addressof(pointers), 0, (places, pointers)


def _as_buffer_of_pointers(out: Any) -> tuple[Any, int, Any]:
    places = _places(out)
    return np.array([ctypes.addressof(place) for place in places], dtype=np.uint64), 0, places


def _as_extra(out: Any) -> tuple[Any, int, Any]:
    flat = ctypes.create_string_buffer(FLAT.pack(int(out), *VALUES))
    size = ctypes.c_size_t(FLAT.size)
    settings = (ctypes.c_void_p * 5)(
        cuda.CU_LAUNCH_PARAM_BUFFER_SIZE, ctypes.addressof(size),
        cuda.CU_LAUNCH_PARAM_BUFFER_POINTER, ctypes.addressof(flat),
        cuda.CU_LAUNCH_PARAM_END,
    )  # fmt: skip
    return 0, ctypes.addressof(settings), (flat, size, settings)


FORMS = [
    _as_values,
    _as_handles,
    _as_a_handle_of_void_p,
    _as_ctypes_and_numpy,
    _as_wider_ctypes,
    _as_pointer_array,
    _as_buffer_of_pointers,
    _as_extra,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_parameters_arrive_in_every_form(module: Any, form: Any) -> None:
    out = ok(cuda.cuMemAlloc(STORED.size))
    parameters, extra, _held = form(out)
    function = _function(module, b"keep")
    for _ in range(2):  # the first launch prepares what later ones use
        ok(cuda.cuMemsetD8(out, 0, STORED.size))
        ok(_launch(function, parameters, extra))
        back = bytearray(STORED.size)
        ok(cuda.cuMemcpyDtoH(back, out, STORED.size))
        assert STORED.unpack(back) == VALUES


class Pair(ctypes.Structure):
    """8 bytes, as a parameter of type None."""

    _fields_ = (("low", ctypes.c_uint32), ("high", ctypes.c_uint32))


def test_structures_and_enums_are_parameters(module: Any) -> None:
    out = ok(cuda.cuMemAlloc(8))
    address = Pair(int(out) & 0xFFFFFFFF, int(out) >> 32)
    value = cuda.CUresult.CUDA_ERROR_UNKNOWN
    ok(_launch(_function(module, b"store"), ((address, value), (None, None))))
    back = np.zeros(1, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(back, out, 4))
    assert back[0] == 999


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (((1,), (ctypes.c_int, ctypes.c_int)), TypeError),
        ((1, 2), TypeError),
        (((1, 2),), TypeError),
        ("x", TypeError),
        (((1, 2), ("x", ctypes.c_uint)), TypeError),
        (((1.5, 2), (ctypes.c_void_p, ctypes.c_uint)), TypeError),
        (((0, 1.5), (ctypes.c_void_p, ctypes.c_uint)), TypeError),
        ((([], 2), (None, ctypes.c_uint)), TypeError),
    ],
)
def test_parameters_that_cannot_be_raise_as_in_cuda_bindings(module: Any, parameters: Any, error: Any) -> None:
    with pytest.raises(error):
        _launch(_function(module, b"store"), parameters)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (0, "store has 2 parameters, 0 were given"),
        (None, "store has 2 parameters, 0 were given"),
        (((), ()), "store has 2 parameters, 0 were given"),
        (((1,), (ctypes.c_void_p,)), "store has 2 parameters, 1 were given"),
        (((1, 2, 3), (ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)), "store has 2 parameters, 3 were given"),
        (np.zeros(1, dtype=np.uint64), "more than the host buffer has"),
        (np.zeros(2, dtype=np.uint64), "pointer to parameter 0 of store is NULL"),
    ],
)
def test_too_few_or_too_many_parameters_are_counted(module: Any, parameters: Any, words: str) -> None:
    assert _launch(_function(module, b"store"), parameters) == INVALID_VALUE
    assert words in last_error()


def test_parameters_come_one_way_only(module: Any) -> None:
    parameters, extra, _held = _as_extra(0)
    assert _launch(_function(module, b"store"), ((1, 2), (ctypes.c_void_p, ctypes.c_uint)), extra) == INVALID_VALUE
    assert "pass one" in last_error()
    assert parameters == 0


def test_a_flat_buffer_that_is_too_short_is_refused(module: Any) -> None:
    size = ctypes.c_size_t(4)
    settings = (ctypes.c_void_p * 5)(1, ctypes.addressof(size), 2, ctypes.addressof(size), 0)
    assert _launch(_function(module, b"store"), 0, ctypes.addressof(settings)) == INVALID_VALUE
    assert "12 bytes, the buffer in extra has 4" in last_error()


@pytest.mark.parametrize(
    ("shape", "result", "words"),
    [
        ((0, 1, 1, 1, 1, 1, 0), "INVALID_VALUE", "grid x is 0"),
        ((1, 65536, 1, 1, 1, 1, 0), "INVALID_VALUE", "grid y is 65536"),
        ((1, 1, 1, 1025, 1, 1, 0), "INVALID_VALUE", "block x is 1025"),
        ((1, 1, 1, 1, 1, 65, 0), "INVALID_VALUE", "block z is 65"),
        ((1, 1, 1, 64, 64, 1, 0), "INVALID_VALUE", "4096 threads per block"),
        ((1, 1, 1, 1, 1, 1, 50000), "INVALID_VALUE", "MAX_DYNAMIC_SHARED_SIZE_BYTES"),
    ],
)
def test_shapes_are_checked_before_anything_is_sent(
    module: Any, shape: tuple[int, ...], result: str, words: str
) -> None:
    answer = cuda.cuLaunchKernel(_function(module, b"nothing"), *shape, 0, 0, 0)
    assert answer == (getattr(cuda.CUresult, f"CUDA_ERROR_{result}"),)
    assert words in last_error()
    ok(cuda.cuCtxSynchronize())


def test_more_dynamic_shared_memory_is_there_for_the_asking(module: Any) -> None:
    function = _function(module, b"nothing")
    attribute = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert cuda.cuFuncSetAttribute(function, attribute, 232449) == INVALID_VALUE
    ok(cuda.cuFuncSetAttribute(function, attribute, 100_000))
    assert ok(cuda.cuFuncGetAttribute(attribute, function)) == 100_000
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 100_000, 0, 0, 0))
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuFuncSetAttribute(function, attribute, 0))
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 100_000, 0, 0, 0) == INVALID_VALUE


def test_attributes_of_kernels(module: Any) -> None:
    function = _function(module, b"nothing")
    assert ok(cuda.cuFuncGetAttribute(Attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)) == 1024
    assert ok(cuda.cuFuncGetAttribute(int(Attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), function)) == 0
    assert cuda.cuFuncGetAttribute(12345, function) == (*INVALID_VALUE, None)
    assert cuda.cuFuncSetAttribute(function, Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, 1) == INVALID_VALUE


# --- loading

IMAGES = {
    "bytes": lambda: PTX,
    "with NUL": lambda: PTX + b"\0 this is not read",
    "numpy": lambda: np.frombuffer(PTX, dtype=np.int8),
    "array": lambda: bytearray(PTX),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_in_every_buffer(context: Any, kind: str) -> None:
    module = ok(cuda.cuModuleLoadData(IMAGES[kind]()))
    ok(_launch(_function(module, b"nothing"), 0))
    ok(cuda.cuModuleUnload(module))


def test_an_image_at_an_address_and_in_a_file(context: Any, tmp_path: Path) -> None:
    kept_open = ctypes.create_string_buffer(PTX)
    assert _function(ok(cuda.cuModuleLoadData(ctypes.addressof(kept_open))), b"nothing")
    assert _function(ok(cuda.cuModuleLoad(str(PTX_FILE).encode())), b"nothing")
    missing = str(tmp_path / "none.ptx").encode()
    assert cuda.cuModuleLoad(missing) == (cuda.CUresult.CUDA_ERROR_FILE_NOT_FOUND, None)
    assert "none.ptx: No such file" in last_error()
    with pytest.raises(TypeError, match="expected bytes"):
        cuda.cuModuleLoad(str(PTX_FILE))


def test_an_image_larger_than_one_part(context: Any) -> None:
    padding = b"// this line is here to make the image long\n" * 120_000
    assert _function(ok(cuda.cuModuleLoadData(padding + PTX)), b"nothing")


BROKEN = PTX + b".visible .entry broken()\n{\n    .reg .b32 %r<2>;\n    frobnicate.u32 %r1, 5;\n    ret;\n}\n"


@pytest.mark.parametrize("buffer", [lambda: bytearray(4096), lambda: bytes(4096)], ids=["bytearray", "bytes"])
def test_the_error_log_reports_what_is_wrong_with_the_code(context: Any, buffer: Any) -> None:
    log, info = buffer(), bytearray(b"x" * 10)
    options = [
        Option.CU_JIT_ERROR_LOG_BUFFER,
        Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        Option.CU_JIT_INFO_LOG_BUFFER,
        Option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        Option.CU_JIT_OPTIMIZATION_LEVEL,
    ]
    answer = cuda.cuModuleLoadDataEx(BROKEN, 5, options, [log, 4096, info, 10, 2])
    assert answer == (cuda.CUresult.CUDA_ERROR_INVALID_PTX, None)
    text = bytes(log).split(b"\0", 1)[0].decode()
    assert "frobnicate" in text
    line, _, reason = last_error().partition(": ")  # the driver's form, as recorded with an H200
    assert text == (
        f"ptxas application ptx input, {line}; error   : {reason}\nptxas fatal   : Ptx assembly aborted due to errors"
    )
    assert info[0] == 0


def test_kernels_of_a_large_image_are_loaded_when_they_are_looked_up(context: Any) -> None:
    padding, line = b"// what makes it large\n" * 4000, PTX.count(b"\n") + 3
    module = ok(cuda.cuModuleLoadData(PTX + b".visible .entry broken()\n{\n bra nowhere;\n}\n" + padding))
    count = ok(cuda.cuModuleGetFunctionCount(module))
    functions = {
        ok(cuda.cuFuncGetName(function)): function for function in ok(cuda.cuModuleEnumerateFunctions(count, module))
    }
    states = cuda.CUfunctionLoadingState
    unloaded = states.CU_FUNCTION_LOADING_STATE_UNLOADED
    assert [ok(cuda.cuFuncIsLoaded(function)) for function in functions.values()] == [unloaded] * count
    for answer in (cuda.cuModuleGetFunction(module, b"broken"), cuda.cuFuncLoad(functions[b"broken"])):
        assert answer[0] == cuda.CUresult.CUDA_ERROR_INVALID_PTX
        assert f"line {line}: unknown or unsupported name nowhere" in last_error()
    # A function is loaded by a launch, by a question for its attributes or parameters, and by looking it up.
    out = ok(cuda.cuMemAlloc(8))
    assert _launch(functions[b"store"], ((out, 7), (None, ctypes.c_uint))) == (cuda.CUresult.CUDA_SUCCESS,)
    assert ok(cuda.cuFuncGetParamInfo(functions[b"add"], 1)) == (8, 8)
    result = ctypes.c_uint(0)
    ok(cuda.cuMemcpyDtoH(result, out, 4))
    assert result.value == 7
    for name in (b"store", b"add"):
        assert ok(cuda.cuFuncIsLoaded(functions[name])) == states.CU_FUNCTION_LOADING_STATE_LOADED
        assert int(_function(module, name)) == int(functions[name])


def test_a_short_log_is_cut_and_ends_with_nul(context: Any) -> None:
    log = bytearray(b"x" * 32)
    options = [Option.CU_JIT_ERROR_LOG_BUFFER, Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    cuda.cuModuleLoadDataEx(BROKEN, 2, options, [log, 16])
    assert log[15] == 0
    assert b"\0" not in log[:15]
    assert log[16:] == b"x" * 16


@pytest.mark.parametrize(
    ("count", "options", "values", "result", "words"),
    [
        (1, [Option.CU_JIT_LTO], [1], "NOT_SUPPORTED", "CU_JIT_LTO"),
        (2, [Option.CU_JIT_FAST_COMPILE], [1], "INVALID_VALUE", "numOptions is 2"),
        (1, [999], [1], "INVALID_VALUE", "999"),
    ],
)
def test_options_that_cannot_be_are_named(
    context: Any, count: int, options: Any, values: Any, result: str, words: str
) -> None:
    answer = cuda.cuModuleLoadDataEx(PTX, count, options, values)
    assert answer == (getattr(cuda.CUresult, f"CUDA_ERROR_{result}"), None)
    assert words in last_error()


def test_a_module_is_loaded_without_options(context: Any) -> None:
    ok(cuda.cuModuleLoadDataEx(PTX, 0, None, None))
    ok(cuda.cuModuleLoadDataEx(PTX, 0, [], []))


@pytest.mark.parametrize("image", [b"", b"\0", b"\x7fELF" + bytes(60), b"\xb1\x43\x62\x46" + bytes(60), b"hello"])
def test_data_that_is_not_an_image_is_refused(context: Any, image: bytes) -> None:
    result, module = cuda.cuModuleLoadData(image)
    assert module is None
    assert result != cuda.CUresult.CUDA_SUCCESS
    assert last_error()
    ok(cuda.cuCtxSynchronize())


def test_globals_have_addresses_and_sizes(module: Any) -> None:
    address, size = ok(cuda.cuModuleGetGlobal(module, b"counter"))
    assert size == 4
    ok(_launch(_function(module, b"count"), 0, grid=3, block=2))
    back = np.zeros(1, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(back, address, 4))
    assert back[0] == 5 + 6
    assert ok(cuda.cuModuleGetGlobal(module, b"table"))[1] == 24
    assert cuda.cuModuleGetGlobal(module, b"nix") == (cuda.CUresult.CUDA_ERROR_NOT_FOUND, None, None)
    assert "it has counter, table" in last_error()


def test_functions_are_found_once_and_missing_ones_named(module: Any) -> None:
    assert int(_function(module, b"add")) == int(_function(module, b"add"))
    assert cuda.cuModuleGetFunction(module, b"nix") == (cuda.CUresult.CUDA_ERROR_NOT_FOUND, None)
    assert "'nix'" in last_error()
    assert "add" in last_error()


def test_after_unloading_the_handles_are_invalid(module: Any) -> None:
    function = _function(module, b"nothing")
    ok(cuda.cuModuleUnload(module))
    invalid = cuda.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert _launch(function, 0) == (invalid,)
    assert cuda.cuModuleGetFunction(module, b"nothing") == (invalid, None)
    assert cuda.cuModuleUnload(module) == (invalid,)


# --- fatbins


def test_a_fatbin_and_its_wrapper_are_loaded(context: Any) -> None:
    image = (Path(__file__).parents[1] / "data" / "images" / "several.fatbin").read_bytes()
    wrapper = struct.pack(
        "<IIQQ", 0x466243B1, 1, ctypes.addressof(kept_open := ctypes.create_string_buffer(image)), 0
    )
    for arguments in (image, ctypes.addressof(kept_open), wrapper):
        for load in (cuda.cuModuleLoadData, cuda.cuModuleLoadFatBinary):
            assert ok(cuda.cuModuleGetFunctionCount(ok(load(arguments)))) == 1
    for broken in (wrapper[:12], struct.pack("<IIQQ", 0x466243B1, 1, 0, 0)):
        assert cuda.cuModuleLoadFatBinary(broken)[0].name == "CUDA_ERROR_INVALID_VALUE"


# --- arguments that are not handles, as cuda.bindings has it


def test_handle_0_is_not_a_function(context: Any) -> None:
    for none in (None, 0):
        assert _launch(none, None)[0].name == "CUDA_ERROR_INVALID_HANDLE"


@pytest.mark.parametrize("kind", [None, ctypes.c_void_p])
@pytest.mark.parametrize("wrong", [1.5, None, "text"])
def test_a_pointer_parameter_is_a_pointer(module: Any, kind: Any, wrong: Any) -> None:
    function, out = _function(module, b"store"), ok(cuda.cuMemAlloc(4))
    for good in range(3):  # the launch cache knows this kind of launch from the third on
        ok(_launch(function, ((out, good), (kind, ctypes.c_uint))))
    with pytest.raises(TypeError):
        _launch(function, ((wrong, 1), (kind, ctypes.c_uint)))


def test_a_real_number_is_not_a_handle(module: Any) -> None:
    function, out = _function(module, b"store"), ok(cuda.cuMemAlloc(4))
    for _ in range(3):
        ok(_launch(function, ((out, 1), (None, ctypes.c_uint))))
    for wrong in (1.5, np.float32(1.5), np.float64(1.5), Fraction(3, 2)):
        with pytest.raises(TypeError, match=r"ctypes\.Structure"):
            _launch(function, ((wrong, 1), (None, ctypes.c_uint)))


# --- faults


def _until_it_fails(call: Callable[[], tuple[Any, ...]]) -> list[str]:
    """Make a call again and again until it has failed, and some more; return the results after the first failure."""
    end = time.monotonic() + 30
    while (answer := call())[0] == cuda.CUresult.CUDA_SUCCESS:
        assert time.monotonic() < end, "no call has failed"
    return [answer[0].name, *(call()[0].name for _ in range(3))]


@pytest.mark.parametrize("what", ["launch", "fill", "launch of a library's"])
def test_calls_that_wait_for_nothing_learn_of_a_fault(module: Any, what: str) -> None:
    function, count, out = _function(module, b"store"), _function(module, b"count"), ok(cuda.cuMemAlloc(4))
    ok(_launch(count, None))
    calls = {
        "launch": lambda: _launch(count, ((), ())),
        "fill": lambda: cuda.cuMemsetD32Async(out, 1, 1, 0),
        "launch of a library's": lambda: _launch(
            cuda.CUfunction(int(kernel)), ((out, 1), (ctypes.c_void_p, ctypes.c_uint))
        ),
    }
    kernel = ok(cuda.cuLibraryGetKernel(ok(cuda.cuLibraryLoadData(PTX, [], [], 0, [], [], 0)), b"store"))
    ok(calls[what]())
    ok(_launch(function, ((16, 1), (ctypes.c_void_p, ctypes.c_uint))))
    assert _until_it_fails(calls[what]) == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 4
