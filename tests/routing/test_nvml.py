"""NVML's queries: the devices that the driver's functions describe; pympsd's libnvidia-ml.so.1 answers."""

from __future__ import annotations

import pytest

from tests.routing.conftest import BEGINNING, Run

NVML = """
nvml = __import__("cuda.bindings.nvml").bindings.nvml

def refused(call, *arguments):
    try:
        call(*arguments)
    except nvml.NvmlError as error:
        print(error.status, error)
"""
INITIALIZED = NVML + "nvml.init_v2()\nhandle = nvml.device_get_handle_by_index_v2(0)\n"


def test_nvml_describes_the_drivers_devices(run: Run) -> None:
    program = """
context()
def same(ours, drivers):
    assert ours == drivers, (ours, drivers)
attribute = cuda.CUdevice_attribute
same(nvml.device_get_count_v2(), ok(cuda.cuDeviceGetCount()))
same(nvml.device_get_name(handle), ok(cuda.cuDeviceGetName(96, 0)).rstrip(bytes(1)).decode())
uuid = nvml.device_get_uuid(handle)
same(uuid.removeprefix("GPU-").replace("-", ""), ok(cuda.cuDeviceGetUuid(0)).bytes.hex())
kinds = attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
capability = tuple(ok(cuda.cuDeviceGetAttribute(kind, 0)) for kind in kinds)
same(tuple(nvml.device_get_cuda_compute_capability(handle)), capability)
bus_id = ok(cuda.cuDeviceGetPCIBusId(32, 0)).rstrip(bytes(1)).decode()
same(nvml.device_get_pci_info_v3(handle).bus_id, "0000" + bus_id)
same(nvml.device_get_pci_info_ext(handle).bus_id, "0000" + bus_id)
for found in (
    nvml.device_get_handle_by_uuid(uuid), nvml.device_get_handle_by_uuid(uuid[4:]),
    nvml.device_get_handle_by_pci_bus_id_v2(bus_id), nvml.device_get_handle_by_pci_bus_id_v2("0000" + bus_id),
):
    same(found, handle)
same(nvml.device_get_index(handle), 0)
mode = ok(cuda.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0))
same(nvml.device_get_compute_mode(handle), mode)
same(nvml.system_get_cuda_driver_version(), ok(cuda.cuDriverGetVersion()))
same(nvml.system_get_process_name(os.getpid()), open("/proc/self/cmdline").read().partition(chr(0))[0])
print("done")
"""
    assert run(INITIALIZED + program).stdout == "done\n"


def test_nvml_reports_how_much_memory_is_used(run: Run) -> None:
    program = """
import time
def settles(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()
used = lambda: nvml.device_get_memory_info_v2(handle).used
before = used()
context()
ok(cuda.cuMemAlloc(64 << 20))
def agrees():
    info = nvml.device_get_memory_info_v2(handle)
    return (info.free, info.total - info.reserved) == ok(cuda.cuMemGetInfo())
print(settles(agrees), used() - before >= 64 << 20)
own = [entry for entry in nvml.device_get_mps_compute_running_processes_v3(handle) if entry.pid == os.getpid()]
print(len(own), own[0].used_gpu_memory >= 64 << 20)
"""
    assert run(INITIALIZED + program).stdout == "True True\n1 True\n"


def test_a_process_that_has_probed_may_fork_and_use_cuda(run: Run) -> None:
    program = """
if os.fork() == 0:
    context()
    print(nvml.device_get_name(handle) != "", nvml.device_get_memory_info_v2(handle).total > 0, flush=True)
    os._exit(0)
print(os.waitpid(-1, 0)[1])
"""
    assert run(INITIALIZED + program).stdout == "True True\n0\n"


def test_a_child_of_a_process_that_uses_cuda_may_ask(run: Run) -> None:
    program = """
context()
if os.fork() == 0:
    nvml.init_v2()
    print(nvml.device_get_memory_info_v2(nvml.device_get_handle_by_index_v2(0)).total > 0, flush=True)
    os._exit(0)
print(os.waitpid(-1, 0)[1])
"""
    assert run(NVML + program).stdout == "True\n0\n"


def test_nvml_is_initialized_as_often_as_it_is_shut_down(run: Run) -> None:
    program = """
refused(nvml.device_get_count_v2)
refused(nvml.shutdown)
nvml.init_v2()
nvml.init_with_flags(1)
nvml.shutdown()
print(nvml.device_get_count_v2() > 0)
nvml.shutdown()
refused(nvml.device_get_count_v2)
refused(nvml.init_with_flags, 8)
"""
    output = "1 Uninitialized\n1 Uninitialized\nTrue\n1 Uninitialized\n2 Invalid Argument\n"
    assert run(NVML + program).stdout == output


def test_nvml_reports_where_the_device_is_and_what_it_lacks(run: Run) -> None:
    program = """
def numbers(words):
    return {64 * at + bit for at, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1}
cpus = numbers(nvml.device_get_cpu_affinity_within_scope(handle, 16, 0))
print(os.sched_getaffinity(0) <= cpus, numbers(nvml.device_get_memory_affinity(handle, 1, 1)))
print([list(nvml.system_get_topology_gpu_set(cpu)) == [handle] for cpu in (min(cpus), 1 << 20)])
print([list(nvml.device_get_topology_nearest_gpus(handle, level)) for level in (0, 40)])
print(nvml.device_get_brand(handle) == nvml.BrandType.NVIDIA, nvml.device_get_minor_number(handle))
print([int(getattr(nvml, f"device_get_{name}")(handle)) for name in (
    "display_active", "display_mode", "num_fans", "persistence_mode", "supported_event_types")])
nvml.device_set_persistence_mode(handle, 0)
refused(nvml.device_set_persistence_mode, handle, 1)
print(int(nvml.device_get_field_values(handle, [nvml.FieldId.DEV_TOTAL_ENERGY_CONSUMPTION])[0].nvml_return))
refused(nvml.device_get_cpu_affinity_within_scope, handle, 16, 7)
refused(nvml.device_get_memory_affinity, handle, 0, 0)
refused(nvml.device_get_topology_nearest_gpus, handle, 5)
refused(nvml.device_get_minor_number, 7)
refused(nvml.device_get_temperature_v, handle, 0)
"""
    assert run(INITIALIZED + program).stdout.splitlines() == [
        "True {0}", "[True, False]", "[[], []]", "True 0", "[0, 0, 0, 0, 11]", "3 Not Supported", "3",
        "2 Invalid Argument", "7 Insufficient Size", "2 Invalid Argument", "2 Invalid Argument", "3 Not Supported",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("device_get_name, 7", "2 Invalid Argument"),
        ("device_get_memory_info_v2, 0", "2 Invalid Argument"),
        ("device_get_handle_by_index_v2, nvml.device_get_count_v2()", "2 Invalid Argument"),
        ("device_get_handle_by_uuid, 'GPU-none'", "6 Not Found"),
        ("device_get_handle_by_pci_bus_id_v2, ''", "6 Not Found"),
        ("system_get_process_name, 1 << 30", "6 Not Found"),
    ],
)
def test_bad_arguments_of_nvml_are_refused(run: Run, call: str, message: str) -> None:
    assert run(f"{INITIALIZED}\nrefused(nvml.{call})").stdout == f"{message}\n"


def test_pynvml_finds_it_too(run: Run) -> None:
    program = """
library = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint()
print(library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value > 0)
rates = nvml.device_get_utilization_rates(handle)
print(rates.gpu in range(101), rates.memory)
"""
    done = run(INITIALIZED + program)
    assert (done.stdout, done.stderr) == ("0 0 True\nTrue 0\n", "")


def test_nvml_without_a_server_finds_no_driver(run: Run) -> None:
    program = "refused(nvml.init_v2)"
    done = run(NVML + program, begin=BEGINNING, CUDA_MPS_PIPE_DIRECTORY="/nonexistent", PYMPSD_REQUIRE_MPS="1")
    reason = "start one (pympsd -d), or name its directory in CUDA_MPS_PIPE_DIRECTORY"
    assert done.stdout == f"9 Driver Not Loaded: no daemon of pympsd at /nonexistent: {reason}\n"
