"""File names, identities and statuses."""

from pympsd.vocabulary import files
from pympsd.vocabulary.identities import Ids
from pympsd.vocabulary.results import ServerStatus


def test_the_files_are_the_documented_ones() -> None:
    assert (files.CONTROL, files.CONTROL_PRIVILEGED, files.LOCK) == ("control", "control_privileged", "control_lock")
    assert (files.LOG_FIFO, files.PID) == ("log", "nvidia-cuda-mps-control.pid")
    assert (files.CONTROL_LOG, files.SERVER_LOG) == ("control.log", "server.log")


def test_directories_come_from_the_environment_or_are_the_documented_ones() -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "a", "CUDA_MPS_LOG_DIRECTORY": "b"}
    assert (files.pipe_directory(environment), files.log_directory(environment)) == ("a", "b")
    assert (files.pipe_directory({}), files.log_directory({})) == ("/tmp/nvidia-mps", "/var/log/nvidia-mps")


def test_ids_count_from_1_without_repetition() -> None:
    ids = Ids()
    assert [ids.take() for _ in range(1000)] == list(range(1, 1001))


def test_statuses_are_printed_by_name() -> None:
    assert [str(status) for status in ServerStatus] == ["INITIALIZING", "ACTIVE", "FAULT"]
