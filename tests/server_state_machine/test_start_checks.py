"""What a server refuses at its start: platforms, old devices, no unified addressing, prohibited devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.machine import describe, parse_toml, set_attributes
from pympsd.devices.visible import keep_one_generation
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd_server.state_machine import start_checks
from pympsd_server.state_machine.start_checks import SUPPORTED, refusals

LINUX = ("Linux", 64)
CAPABILITIES = st.tuples(st.integers(1, 12), st.integers(0, 9))
(H200,) = describe("H200")


def device(capability: str = "9.0", **attributes: int) -> DeviceProperties:
    (described,) = parse_toml(f'[[device]]\ncompute_capability = "{capability}"')
    return set_attributes(described, **attributes)


def test_usual_devices_are_accepted() -> None:
    assert refusals(*LINUX, describe("H200,A100,V100")) == ()
    assert refusals(*LINUX, describe("2xP100")) == ()
    assert refusals(*LINUX, (device(COMPUTE_MODE=start_checks.EXCLUSIVE_PROCESS),)) == ()


@pytest.mark.parametrize(
    ("system", "bits", "fine"),
    [
        ("Linux", 64, True),
        ("Linux", 32, False),
        ("Darwin", 64, False),
        ("Windows", 64, False),
        ("QNX", 64, False),
        ("", 64, False),
        ("linux", 64, False),
    ],
)
def test_only_64_bit_linux_is_supported(system: str, bits: int, fine: bool) -> None:
    assert start_checks.is_platform_supported(system, bits) is fine
    sentences = refusals(system, bits, (H200,))
    assert sentences == (() if fine else (SUPPORTED, f"This is {system} with pointers of {bits} bits."))


def test_the_unsupported_sentence_is_the_documented_one() -> None:
    assert SUPPORTED == "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."


@given(st.lists(CAPABILITIES, min_size=1, max_size=4))
def test_a_device_below_3_5_is_refused_and_named(capabilities: list[tuple[int, int]]) -> None:
    devices = [device(f"{major}.{minor}") for major, minor in capabilities]
    old = [number for number, capability in enumerate(capabilities) if capability < (3, 5)]
    sentences = refusals(*LINUX, devices)
    assert len(sentences) == (1 + len(old) if old else 0)
    if old:
        assert sentences[0] == SUPPORTED
    for number, sentence in zip(old, sentences[1:], strict=True):
        major, minor = capabilities[number]
        assert sentence == f"Device {number} (NVIDIA H200, {devices[number].uuid}) is SM {major}.{minor}."


def test_a_device_without_unified_addressing_is_refused() -> None:
    (plain,) = parse_toml("[[device]]\nunified_addressing = false")
    name = f"device 1 (NVIDIA H200, {plain.uuid})"
    assert refusals(*LINUX, (H200, plain)) == (
        f"MPS is only supported with unified addressing, which {name} does not support.",
    )


def test_a_prohibited_device_is_refused() -> None:
    (prohibited,) = parse_toml('[[device]]\ncompute_mode = "PROHIBITED"')
    (sentence,) = refusals(*LINUX, (prohibited,))
    assert sentence.startswith(f"MPS cannot use device 0 (NVIDIA H200, {prohibited.uuid}): ")
    assert "compute mode PROHIBITED" in sentence


def test_all_reasons_are_given_together() -> None:
    sentences = refusals(*LINUX, (device("3.0", UNIFIED_ADDRESSING=0, COMPUTE_MODE=start_checks.PROHIBITED),))
    for part, sentence in zip(("SM 3.5", "is SM 3.0", "unified addressing", "PROHIBITED"), sentences, strict=True):
        assert part in sentence


def test_an_old_device_next_to_a_newer_one_is_not_checked() -> None:
    devices = parse_toml('[[device]]\n[[device]]\ncompute_capability = "3.0"')
    remaining = [devices[index] for index in keep_one_generation(devices, (0, 1))]
    assert refusals(*LINUX, remaining) == ()
    assert refusals(*LINUX, devices[1:]) != ()


def test_only_the_devices_that_a_servers_clients_may_use_are_checked() -> None:
    devices = (device(COMPUTE_MODE=start_checks.PROHIBITED), H200, device("3.0"))
    assert refusals(*LINUX, devices, (1,)) == ()
    assert "device 0" in refusals(*LINUX, devices, (0, 1))[0]
    assert refusals(*LINUX, devices, (1, 2))[0] == SUPPORTED


def test_an_exclusive_device_in_use_is_named_with_its_process() -> None:
    exclusive = device(COMPUTE_MODE=start_checks.EXCLUSIVE_PROCESS)
    assert start_checks.is_exclusive(exclusive)
    assert not start_checks.is_exclusive(H200)
    sentence = start_checks.describe_use(2, exclusive, start_checks.DeviceHolder(4711))
    assert f"device 2 (NVIDIA H200, {exclusive.uuid})" in sentence
    assert "process 4711 uses it. Start" in sentence
    assert "folder /x" in start_checks.cannot_be_held(2, exclusive, "the folder /x")


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (("pympsd-server", 7), " (pympsd-server of user 7)"),
        (("x", 7, "/p"), " (x of user 7, CUDA_MPS_PIPE_DIRECTORY=/p)"),
        (
            ("x", 7, "/p", True),
            " (x of user 7, CUDA_MPS_PIPE_DIRECTORY=/p, which was removed; it ends with its last client)",
        ),
    ],
)
def test_a_process_that_holds_a_device_is_described(known: tuple[str, int, str, bool], text: str) -> None:
    assert start_checks.DeviceHolder(5, *known).description == text
