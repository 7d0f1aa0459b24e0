"""Emulated machines: the short form, the TOML form, and the message for each error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import ABILITIES, BadMachine, describe, parse_toml, set_attributes
from pympsd.devices.profiles import PROFILES

UUID = "GPU-53147097-3520-1ce0-a94e-3d46a05aacf3"


def test_the_default_machine_is_one_h200_of_132_sms() -> None:
    (device,) = describe("H200")
    assert (device.name, device.multiprocessors, device.compute_capability) == ("NVIDIA H200", 132, (9, 0))
    assert device.pci == "0000:00.06.00"
    assert device.attributes["MULTIPROCESSOR_COUNT"] == 132
    assert device.attributes["WARP_SIZE"] == 32


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_makes_a_device_whose_attributes_fit_it(profile: str) -> None:
    (device,) = describe(profile)
    assert device.attributes["COMPUTE_CAPABILITY_MAJOR"] == device.compute_capability[0]
    assert device.attributes["COMPUTE_CAPABILITY_MINOR"] == device.compute_capability[1]
    assert device.memory_bytes >= 8 << 30
    assert device.is_volta_or_newer == (profile != "P100")


def test_counts_and_commas_make_several_devices_with_identities_of_their_own() -> None:
    devices = describe("2xH200, 1xP100,A100,H100")
    assert [device.name.split()[-1] for device in devices] == [
        "H200",
        "H200",
        "P100-SXM2-16GB",
        "A100-SXM4-80GB",
        "HBM3",
    ]
    assert len({device.uuid for device in devices}) == 5
    assert [device.pci for device in devices] == [f"0000:00.{6 + n:02x}.00" for n in range(5)]


def test_a_machine_is_the_same_each_time_it_is_described() -> None:
    assert describe("64xH200") == describe("64xH200")


@pytest.mark.parametrize(
    "text",
    ["", ",", "B300", "h200", "0xH200", "65xH200", "-1xH200", "2 xH200", "xH200x", "H200,", "1.5xH200", "²xH200"],
)
def test_an_invalid_short_form_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(BadMachine, match=r"one of H200, H100, A100, V100, P100.*count up to 64.*path of a TOML"):
        describe(text)


def test_too_many_devices_in_all_are_refused() -> None:
    with pytest.raises(BadMachine, match="1 to 64 devices, not 65"):
        describe("64xH200,A100")


def test_a_count_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(BadMachine, match="one of H200"):
        describe("9" * 5000 + "xH200")


def test_a_toml_file_describes_each_device(tmp_path: Path) -> None:
    file = tmp_path / "machine"
    file.write_text(
        f"""
        [[device]]
        uuid = "{UUID}"
        pci = "0000:00.09.00"
        name = "A device of ours"
        multiprocessors = 16
        memory_mib = 1024
        compute_capability = "8.6"
        compute_mode = "EXCLUSIVE_PROCESS"
        unified_addressing = false
        [[device]]
        profile = "V100"
        count = 2
        """
    )
    first, second, third = describe(str(file))
    assert (first.uuid, first.pci, first.name) == (UUID, "0000:00.09.00", "A device of ours")
    assert (first.multiprocessors, first.memory_bytes, first.compute_capability) == (16, 1 << 30, (8, 6))
    assert (first.attributes["COMPUTE_MODE"], first.attributes["UNIFIED_ADDRESSING"]) == (3, 0)
    assert (second.attributes["COMPUTE_MODE"], second.attributes["UNIFIED_ADDRESSING"]) == (0, 1)
    assert first.attributes["MULTIPROCESSOR_COUNT"] == 16
    assert second.name == third.name == "Tesla V100-SXM2-32GB"
    assert second.uuid != third.uuid


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("nonsense", "not TOML"),
        ("x = " + "9" * 5000, "not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
        ("driver = 600\n[[device]]", "driver must be one of 580, 590, not 600"),
        ("", r"one \[\[device\]\] table a device"),
        ("device = 5", r"one \[\[device\]\] table a device"),
        ("device = [1]", r"one \[\[device\]\] table a device"),
        ("device = []", "1 to 64 devices, not 0"),
        ("[[device]]\ncolour = 1", "a device has no colour; it has compute_capability, compute_mode, count"),
        ('[[device]]\nprofile = "B300"', "profile 'B300' is not one of H200, H100, A100, V100, P100"),
        ("[[device]]\nprofile = []", "is not one of H200, H100, A100, V100, P100"),
        ("[[device]]\ncount = 0", "count must be a number from 1 to 64, not 0"),
        ("[[device]]\ncount = 65", "count must be a number from 1 to 64, not 65"),
        ("[[device]]\ncount = true", "count must be a number from 1 to 64, not True"),
        ('[[device]]\ncount = "2"', "count must be a number from 1 to 64, not '2'"),
        (f'[[device]]\ncount = 2\nuuid = "{UUID}"', "cannot share one uuid or pci"),
        ('[[device]]\ncount = 2\npci = "x"', "cannot share one uuid or pci"),
        (f'[[device]]\nuuid = "{UUID}"\n[[device]]\nuuid = "{UUID}"', "two devices have the same uuid"),
        (f'[[device]]\nuuid = "{UUID[4:]}"', "GPU- and 32 hexadecimal digits in five groups"),
        (f'[[device]]\nuuid = "{UUID[:-1]}"', "GPU- and 32 hexadecimal digits in five groups"),
        (f'[[device]]\nuuid = "{UUID[:-1]}g"', "GPU- and 32 hexadecimal digits in five groups"),
        (f'[[device]]\nuuid = "GPU-{UUID[4:].replace("-", "")}"', "GPU- and 32 hexadecimal digits in five groups"),
        ("[[device]]\nuuid = 5", "GPU- and 32 hexadecimal digits in five groups"),
        ("[[device]]\nmultiprocessors = 0", "multiprocessors must be a number from 1 to"),
        ('[[device]]\nmemory_mib = "many"', "memory_mib must be a number from 1 to"),
        ("[[device]]\nmemory_mib = 1048577", "memory_mib must be a number from 1 to 1048576, not 1048577"),
        ("[[device]]\ncompute_capability = 9", 'written like "9.0"'),
        ('[[device]]\ncompute_capability = "9."', 'written like "9.0"'),
        ('[[device]]\ncompute_mode = "OFF"', "compute_mode must be one of DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS"),
        ("[[device]]\nunified_addressing = 0", "unified_addressing must be true or false, not 0"),
        ("[[device]]\nsm_chunks = 15", r"sm_chunks must be \[CHUNKS, SMS-IN-EACH\], as in \[15, 8\], not 15"),
        ("[[device]]\nsm_chunks_2 = [0, 8]", r"sm_chunks_2 must be \[CHUNKS, SMS-IN-EACH\]"),
        ("[[device]]\nsm_chunks = [17, 8]", "sm_chunks: 17 chunks of 8 SMs do not fit 132 SMs"),
        ("[[device]]\nsm_chunks_2 = [10, 12]", "10 chunks of 12 SMs cannot be made of 15 chunks of 8"),
        ("[[device]]\nsm_chunks_2 = [8, 16]", "8 chunks of 16 SMs cannot be made of 15 chunks of 8"),
        (
            '[[device]]\nprofile = "V100"\nsm_chunks = [10, 8]',
            "sm_chunks: static SM partitions need compute capability 8.0",
        ),
        ("[[device]]\ncompute_mode = [1]", "compute_mode must be one of DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS"),
    ],
)
def test_an_invalid_toml_text_is_refused_with_the_reason(lines: str, says: str) -> None:
    with pytest.raises(BadMachine, match=says):
        parse_toml(lines)


@pytest.mark.parametrize(("line", "contained"), [("", False), ("'device'", False), ("'client'", True)])
def test_a_machine_describes_fault_containment(line: str, contained: bool) -> None:
    output = f"fault_containment = {line}\n" if line else ""
    devices = parse_toml(f"{output}[[device]]\ncount = 2\n")
    assert [device.contains_faults for device in devices] == [contained] * 2


@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.parametrize(("line", "able"), [("", True), ("true", True), ("false", False)])
def test_a_machine_may_take_abilities_away(ability: str, line: str, able: bool) -> None:
    output = f"{ability} = {line}\n" if line else ""
    devices = parse_toml(f"{output}[[device]]\ncount = 2\n")
    assert [getattr(device, ability) for device in devices] == [able] * 2
    other = next(candidate for candidate in ABILITIES if candidate != ability)
    assert all(getattr(device, other) for device in devices)
    with pytest.raises(BadMachine, match=f"{ability} must be true or false, not 'no'"):
        parse_toml(f"{ability} = 'no'\n[[device]]\n")


def test_address_spaces_are_always_shared_before_volta() -> None:
    (device,) = parse_toml('isolates_address_spaces = true\n[[device]]\nprofile = "P100"\n')
    assert (device.isolates_address_spaces, device.stops_kernels) == (False, True)


def test_a_machine_has_no_other_properties() -> None:
    with pytest.raises(BadMachine, match="a machine has no colour; it has device, fault_containment, driver, stops"):
        parse_toml("colour = 1\n[[device]]\n")


def test_an_unknown_fault_containment_is_refused() -> None:
    with pytest.raises(BadMachine, match="fault_containment must be one of device, client, not 'server'"):
        parse_toml("fault_containment = 'server'\n[[device]]\n")


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadMachine, match=r"^the machine file .*missing\.toml: No such file or directory;"):
        describe(str(tmp_path / "missing.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadMachine, match=r"binary\.toml"):
        describe(str(tmp_path / "binary.toml"))
    with pytest.raises(BadMachine):
        describe("/\0.toml")


@pytest.mark.parametrize("text", ["nonsense", "[[device]]\nfoo = 1", "device = []"])
def test_an_invalid_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(text)
    with pytest.raises(BadMachine, match=f"^the machine file {file}: ") as caught:
        describe(str(file))
    assert str(caught.value).count("PYMPSD_EMULATED_DEVICES") == 1


VALUES = st.recursive(
    st.text(max_size=10) | st.integers() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def _literal(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value if not 0xD800 <= ord(c) < 0xE000) + '"'
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return f"{{{', '.join(f'{_literal(k)} = {_literal(v)}' for k, v in value.items())}}}"
    return repr(value)


@given(st.text())
def test_any_text_is_a_machine_or_a_bad_one(text: str) -> None:
    for read in (describe, parse_toml):
        try:
            assert read(text)
        except BadMachine as error:
            assert str(error)  # noqa: PT017 - raising and not raising are both right here


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "profile",
                "count",
                "uuid",
                "pci",
                "name",
                "multiprocessors",
                "memory_mib",
                "compute_capability",
                "compute_mode",
                "unified_addressing",
                "x",
            ]
        ),
        VALUES,
    )
)
def test_any_table_is_a_device_or_a_bad_machine(table: dict[str, object]) -> None:
    text = "[[device]]\n" + "\n".join(f"{key} = {_literal(value)}" for key, value in table.items())
    try:
        devices = parse_toml(text)
    except BadMachine as error:
        assert str(error)  # noqa: PT017 - raising and not raising are both right here
    else:
        assert all(0 < device.memory_bytes <= 1 << 40 for device in devices)


def test_attributes_can_be_changed_without_touching_the_device() -> None:
    (device,) = describe("H200")
    changed = set_attributes(device, COMPUTE_MODE=2)
    assert (changed.attributes["COMPUTE_MODE"], device.attributes["COMPUTE_MODE"]) == (2, 0)


_ALIASES = {
    "MAXIMUM_TEXTURE2D_ARRAY_HEIGHT", "MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES", "MAXIMUM_TEXTURE2D_ARRAY_WIDTH",
    "REGISTERS_PER_BLOCK", "SHARED_MEMORY_PER_BLOCK", "VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED",
}  # fmt: skip
"""Older names of attributes, whose values are found by the newer names."""
_OF_THE_MODEL = {"GLOBAL_MEMORY_BUS_WIDTH", "L2_CACHE_SIZE", "MAX_PERSISTING_L2_CACHE_SIZE", "MEMORY_CLOCK_RATE"}
"""What an H200 and an H100 differ in; those of the H200 are in the corpus' recorded.json."""
_NOT_HERE = {
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": "kernels see registered memory at addresses of its own",
    "COOPERATIVE_MULTI_DEVICE_LAUNCH": "CUDA 13 has no cuLaunchCooperativeKernelMultiDevice",
    "DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED": "arrays are made with their memory",
    "DMA_BUF_SUPPORTED": "no kernel driver exports the memory",
    "GENERIC_COMPRESSION_SUPPORTED": "memory is not compressed",
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": "no other device reaches the memory",
    "GPU_DIRECT_RDMA_SUPPORTED": "no other device reaches the memory",
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": "no other device reaches the memory",
    "GPU_DIRECT_RDMA_WRITES_ORDERING": "no other device reaches the memory",
    "GPU_PCI_DEVICE_ID": "names a board",
    "GPU_PCI_SUBSYSTEM_ID": "names a board",
    "HANDLE_TYPE_FABRIC_SUPPORTED": "there is no fabric of several nodes",
    "READ_ONLY_HOST_REGISTER_SUPPORTED": "CU_MEMHOSTREGISTER_READ_ONLY is refused",
    "SPARSE_CUDA_ARRAY_SUPPORTED": "CUDA_ARRAY3D_SPARSE is refused",
    "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED": "there is no Vulkan or Direct3D to share semaphores with",
    "UNIFIED_FUNCTION_POINTERS": "cuLibraryGetUnifiedFunction finds none",
}
"""Attributes that are 0 because the emulated device lacks what they tell of."""
_OTHERS = {
    "MEMPOOL_SUPPORTED_HANDLE_TYPES": (1, "POSIX_FILE_DESCRIPTOR (1), not FABRIC (8)"),
    "MPS_ENABLED": (1, "the recording was made without MPS; see pympsd"),
}


@pytest.mark.parametrize(("model", "of_the_model"), [("H100", set[str]()), ("H200", _OF_THE_MODEL)])
def test_a_device_has_the_attributes_that_driver_580_reports(model: str, of_the_model: set[str]) -> None:
    head, *lines = (Path(__file__).parents[1] / "data" / "device-attributes-h100.txt").read_text().splitlines()
    reported = {name: int(value) for name, value in (line.split() for line in lines)}
    (device,) = describe(model)
    has = {name: value for name, value in device.attributes.items() if value}
    differ = {name: has.get(name, 0) for name in {*reported, *has} if reported.get(name, 0) != has.get(name, 0)}
    deliberate = dict.fromkeys(_NOT_HERE, 0) | {name: value for name, (value, _) in _OTHERS.items()}
    expected = deliberate | dict.fromkeys(_ALIASES, 0) | {name: device.attributes[name] for name in of_the_model}
    assert differ == expected
    if model == "H100":
        assert head == f"{device.name}, total memory in bytes: {device.memory_bytes}"


@pytest.mark.parametrize(("model", "clusters"), [("H200", 1), ("A100", 0)])
def test_clusters_are_launched_from_9_0_on(model: str, clusters: int) -> None:
    (device,) = describe(model)
    assert device.attributes["CLUSTER_LAUNCH"] == clusters


def test_tensor_maps_are_of_compute_capability_9_0_on() -> None:
    devices = describe("H200,H100,A100,V100,P100")
    assert [device.attributes["TENSOR_MAP_ACCESS_SUPPORTED"] for device in devices] == [1, 1, 0, 0, 0]
