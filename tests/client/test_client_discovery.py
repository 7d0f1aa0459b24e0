"""How a program reaches a device, and how its hello describes it."""

from __future__ import annotations

import pytest

from pympsd_client._arguments.errors import CudaError
from pympsd_client._connect.discovery import (
    NoDaemon,
    Way,
    check_switches,
    choose_without_daemon,
    command_line,
    control_socket,
    hello_environment,
    refusal,
)


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, "/tmp/nvidia-mps/control"),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, "/tmp/nvidia-mps/control"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, "/run/mps/control"),
    ],
)
def test_the_control_socket_is_in_the_pipe_directory(environment: dict[str, str], path: str) -> None:
    assert control_socket(environment) == path


@pytest.mark.parametrize(
    ("environment", "native_driver", "way"),
    [
        ({}, False, Way.PRIVATE),
        ({}, True, Way.NATIVE),
        ({"PYMPSD_REQUIRE_MPS": "1"}, False, Way.REFUSE),
        ({"PYMPSD_REQUIRE_MPS": "1"}, True, Way.REFUSE),
        ({"PYMPSD_REQUIRE_MPS": "0"}, True, Way.NATIVE),
        ({"PYMPSD_REQUIRE_MPS": ""}, False, Way.PRIVATE),
        ({"PYMPSD_BACKEND": "emulated"}, True, Way.PRIVATE),
        ({"PYMPSD_EMULATED_DEVICES": "2xH200"}, True, Way.PRIVATE),
        ({"PYMPSD_EMULATED_DEVICES": "2xH200", "PYMPSD_BACKEND": "cuda"}, True, Way.NATIVE),
        ({"PYMPSD_BACKEND": "auto"}, True, Way.NATIVE),
    ],
)
def test_a_program_without_a_daemon_runs_as_its_settings_choose(
    environment: dict[str, str], native_driver: bool, way: Way
) -> None:
    assert choose_without_daemon(environment, NoDaemon("no daemon"), lambda: native_driver) is way


@pytest.mark.parametrize("native_driver", [True, False])
def test_a_program_at_a_namespace_runs_without_a_daemon_only_if_it_requests_that(native_driver: bool) -> None:
    why = NoDaemon("no daemon", limited=True)
    ways = [
        choose_without_daemon(environment, why, lambda: native_driver)
        for environment in ({}, {"PYMPSD_REQUIRE_MPS": ""}, {"PYMPSD_REQUIRE_MPS": "0"})
    ]
    assert ways == [Way.REFUSE, Way.REFUSE, Way.NATIVE if native_driver else Way.PRIVATE]


def test_a_program_that_requires_mps_asks_no_driver() -> None:
    choose_without_daemon({"PYMPSD_REQUIRE_MPS": "1"}, NoDaemon("no daemon"), lambda: pytest.fail("asked the driver"))


@pytest.mark.parametrize("required", ["1", "0", ""])
@pytest.mark.parametrize(("native_driver", "way"), [(True, Way.NATIVE), (False, Way.REFUSE)])
def test_a_daemon_of_the_drivers_server_is_for_the_native_driver(
    required: str, native_driver: bool, way: Way
) -> None:
    why = NoDaemon("it manages the driver's own server", drivers=True)
    assert choose_without_daemon({"PYMPSD_REQUIRE_MPS": required}, why, lambda: native_driver) is way


def test_a_refusal_reports_what_is_lacking() -> None:
    assert refusal(NoDaemon("no daemon")) == "no daemon, and PYMPSD_REQUIRE_MPS=1 asks for one"
    limited = refusal(NoDaemon("no daemon", limited=True))
    assert limited == "no daemon; without MPS this program would have no limits (PYMPSD_REQUIRE_MPS=0 lets it run so)"
    assert "libcuda does not load" in refusal(NoDaemon("it manages the driver's own server", drivers=True))


SWITCHES = ("PYMPSD_REQUIRE_MPS", "PYMPSD_LENIENT_LIMITS")


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["true", "yes", "True", "01", " 1", "2", "no", "false"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(name: str, value: str) -> None:
    with pytest.raises(CudaError, match=f"{name} must be 0 or 1, not {value!r}") as caught:
        check_switches({name: value})
    assert caught.value.code == 1


def test_a_switch_is_on_or_off() -> None:
    check_switches({})
    for value in ("", "0", "1"):
        check_switches(dict.fromkeys(SWITCHES, value))


def test_a_hello_carries_only_variables_that_a_daemon_honours() -> None:
    environment = {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        "PYMPSD_LENIENT_LIMITS": "1",
        "HOME": "/root",
        "SECRET_TOKEN": "x",
    }
    assert hello_environment(environment) == {
        name: value for name, value in environment.items() if name not in ("HOME", "SECRET_TOKEN")
    }


def test_a_hello_carries_no_undecodable_byte() -> None:
    assert hello_environment({"CUDA_MPS_X": "a\udcffb"}) == {"CUDA_MPS_X": "a?b"}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"python3\0-m\0train\0", "python3 -m train"),
        (b"", ""),
        (b"a\xff\0", "a�"),
        (b"x" * 9000, "x" * 4096),
    ],
)
def test_a_command_line_as_ps_shows_it(raw: bytes, shown: str) -> None:
    assert command_line(raw) == shown
