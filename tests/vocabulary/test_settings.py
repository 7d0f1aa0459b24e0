"""Settings from an environment: every variable, its default, its complaint."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.vocabulary.settings import (
    Settings,
    check_executor_settings,
)
from pympsd.vocabulary.variables import CONNECTIONS, DIALECTS, STRICT_BOUNDS, VARIABLES, WORKER, BadSetting, read

PERCENTAGE_COMPLAINT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]"
PRIORITY_COMPLAINT = "CUDA_MPS_CLIENT_PRIORITY should be between [0,1]"


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    assert Settings.from_environment({}) == Settings(
        pipe_directory="/tmp/nvidia-mps",
        log_directory="/var/log/nvidia-mps",
        backend="auto",
        emulated_devices="H200",
        visible_devices=None,
        thread_percentage=ThreadPercentage(100.0),
        client_priority=ClientPriority(0),
        complaints=(),
    )


def test_every_variable_is_read() -> None:
    settings = Settings.from_environment(
        {
            "CUDA_MPS_PIPE_DIRECTORY": "/pipe",
            "CUDA_MPS_LOG_DIRECTORY": "/log",
            "PYMPSD_BACKEND": "emulated",
            "PYMPSD_EMULATED_DEVICES": "2xA100",
            "CUDA_VISIBLE_DEVICES": "1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5",
            "CUDA_MPS_CLIENT_PRIORITY": "1",
            "PYMPSD_LOG_DIALECT": "r580",
            "PYMPSD_DRIVER": "580",
            "PYMPSD_TURN_PATIENCE": "2.5",
            "PYMPSD_USERS": "together",
            "PYMPSD_VENDOR_SERVER": "/usr/bin/server",
        }
    )
    assert settings == Settings(
        "/pipe",
        "/log",
        "emulated",
        "2xA100",
        "1",
        ThreadPercentage(12.5),
        ClientPriority(1),
        "r580",
        (),
        overtaking_seconds=2.5,
        driver=580,
        vendor_server="/usr/bin/server",
        users="together",
    )


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0.5", 0.5), ("", 30.0), ("999999999", 999999999.0)])
def test_the_overtaking_limit(text: str, seconds: float) -> None:
    assert Settings.from_environment({"PYMPSD_TURN_PATIENCE": text}).overtaking_seconds == seconds
    assert Settings.from_environment({}).overtaking_seconds == 30.0


@pytest.mark.parametrize("text", ["-1", "x", "30s", "nan", "inf", "1e9", " "])
def test_an_invalid_overtaking_limit_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="PYMPSD_TURN_PATIENCE must be a number of seconds, 0 or more, not"):
        Settings.from_environment({"PYMPSD_TURN_PATIENCE": text})


@pytest.mark.parametrize("text", ["both", "Together", "in turn", "together "])
def test_users_are_in_turn_or_together(text: str) -> None:
    assert Settings.from_environment({}).users == "in-turn"
    with pytest.raises(BadSetting, match="PYMPSD_USERS must be one of in-turn, together, not"):
        Settings.from_environment({"PYMPSD_USERS": text})


@pytest.mark.parametrize("variable", [WORKER, CONNECTIONS])
@pytest.mark.parametrize("text", ["x", "0", "33", "64", "-1", "8 ", "08", "Native", "native ", "\N{SUPERSCRIPT TWO}"])
def test_settings_that_no_executor_can_start_with_are_refused_by_name(variable: str, text: str) -> None:
    with pytest.raises(
        BadSetting, match=f"{variable} must be (one of auto, native, python|a number from 1 to 32), not"
    ):
        check_executor_settings({variable: text}, "cuda")


def test_settings_that_executors_can_start_with_are_accepted() -> None:
    assert read({}, WORKER) == read({WORKER: ""}, WORKER) == "auto"
    assert read({}, CONNECTIONS) == read({CONNECTIONS: ""}, CONNECTIONS) == "32"
    for worker in ("auto", "native", "python"):
        assert read({WORKER: worker}, WORKER) == worker
    for connections in ("1", "8", "32"):
        assert read({CONNECTIONS: connections}, CONNECTIONS) == connections
    for backend in ("cuda", "emulated"):
        check_executor_settings({WORKER: "native", CONNECTIONS: "8"}, backend)


def test_only_settings_that_are_read_are_refused() -> None:
    check_executor_settings({CONNECTIONS: "64"}, "emulated")
    with pytest.raises(BadSetting, match=WORKER):
        check_executor_settings({WORKER: "x"}, "emulated")


def test_wrong_settings_that_prevent_no_start_are_complaints() -> None:
    unread = {WORKER: "x", CONNECTIONS: "64", STRICT_BOUNDS: "x", "PYMPSD_EXPLAIN": "9"}
    settings = Settings.from_environment(unread)
    assert settings.complaints == (
        "PYMPSD_WORKER must be one of auto, native, python, not 'x'",
        "PYMPSD_DEVICE_CONNECTIONS must be a number from 1 to 32, not '64'",
        "PYMPSD_STRICT_BOUNDS must be 0 or 1, not 'x'",
    ), "a client's setting is not the daemon's"
    assert evolve(settings, complaints=()) == Settings.from_environment({}), "without an executor none is read"


def test_a_percentage_with_a_percent_sign_is_read_and_reported() -> None:
    settings = Settings.from_environment({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50%"})
    assert settings.thread_percentage == ThreadPercentage(50.0)
    (complaint,) = settings.complaints
    assert complaint.endswith("must be a number without a percent sign (pympsd reads 50), not '50%'")


def test_an_empty_variable_counts_as_not_set() -> None:
    empty = {entry.name: "" for entry in VARIABLES if entry.name != "CUDA_VISIBLE_DEVICES"}
    assert Settings.from_environment(empty) == Settings.from_environment({})
    for backend in ("cuda", "emulated"):
        check_executor_settings(empty, backend)


@pytest.mark.parametrize("text", DIALECTS)
def test_every_log_dialect_is_accepted(text: str) -> None:
    assert Settings.from_environment({"PYMPSD_LOG_DIALECT": text}).log_dialect == text


@pytest.mark.parametrize("environment", [{}, {"PYMPSD_LOG_DIALECT": ""}])
def test_the_default_log_dialect_is_documented(environment: dict[str, str]) -> None:
    assert Settings.from_environment(environment).log_dialect == "documented"


@pytest.mark.parametrize("text", ["R580", "json ", "580", "text"])
def test_an_unknown_log_dialect_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(BadSetting, match="PYMPSD_LOG_DIALECT must be one of documented, r580, json, not"):
        Settings.from_environment({"PYMPSD_LOG_DIALECT": text})


def test_empty_directories_mean_the_defaults_and_an_empty_selection_stays() -> None:
    empty = {"CUDA_MPS_PIPE_DIRECTORY": "", "CUDA_MPS_LOG_DIRECTORY": "", "CUDA_VISIBLE_DEVICES": ""}
    settings = Settings.from_environment(empty)
    assert (settings.pipe_directory, settings.log_directory) == ("/tmp/nvidia-mps", "/var/log/nvidia-mps")
    assert settings.visible_devices == ""


@pytest.mark.parametrize(
    "text", ["0", "-5", "101", "100.01", "abc", "%", "200%", "33,3", "nan", "inf", "-inf", "12abc", "1_0"]
)
def test_an_invalid_percentage_gives_a_complaint_and_the_default(text: str) -> None:
    settings = Settings.from_environment({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": text})
    assert settings.complaints == (PERCENTAGE_COMPLAINT,)
    assert settings.thread_percentage == ThreadPercentage(100.0)


@pytest.mark.parametrize("text", ["2", "-1", "abc", "high", "0.5", "10", "\N{ARABIC-INDIC DIGIT ZERO}"])
def test_an_invalid_priority_gives_a_complaint_and_the_default(text: str) -> None:
    settings = Settings.from_environment({"CUDA_MPS_CLIENT_PRIORITY": text})
    assert settings.complaints == (PRIORITY_COMPLAINT,)
    assert settings.client_priority == ClientPriority(0)


def test_both_complaints_are_kept() -> None:
    both = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "x", "CUDA_MPS_CLIENT_PRIORITY": "x"}
    assert Settings.from_environment(both).complaints == (PERCENTAGE_COMPLAINT, PRIORITY_COMPLAINT)


def test_auto_becomes_emulated_if_a_machine_is_described() -> None:
    described = {"PYMPSD_EMULATED_DEVICES": "2xH200"}
    for auto in ({}, {"PYMPSD_BACKEND": "auto"}):
        assert Settings.from_environment(auto).backend == "auto"
        assert Settings.from_environment({**auto, **described}).backend == "emulated"
    assert Settings.from_environment({"PYMPSD_BACKEND": "cuda", **described}).backend == "cuda"


def test_an_unknown_backend_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(BadSetting, match=r"PYMPSD_BACKEND must be one of auto, vendor, cuda, emulated, not 'gpu'"):
        Settings.from_environment({"PYMPSD_BACKEND": "gpu"})


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "CUDA_MPS_PIPE_DIRECTORY",
                "CUDA_MPS_LOG_DIRECTORY",
                "PYMPSD_BACKEND",
                "PYMPSD_EMULATED_DEVICES",
                "CUDA_VISIBLE_DEVICES",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                "CUDA_MPS_CLIENT_PRIORITY",
            ]
        ),
        st.text(),
    )
)
def test_no_environment_raises_anything_but_bad_setting(environment: dict[str, str]) -> None:
    try:
        settings = Settings.from_environment(environment)
    except BadSetting:
        assert environment["PYMPSD_BACKEND"] not in ("auto", "cuda", "emulated")
    else:
        assert 0 < settings.thread_percentage.value <= 100
        assert settings.client_priority.level in (0, 1)
