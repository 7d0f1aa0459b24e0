"""What is reported of memory when an executor was killed, of both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pympsd_server.service.memory_accounts import CgroupMemory

MIB = 1 << 20


def memory(tmp_path: Path, own_group: str, files: dict[str, object]) -> CgroupMemory:
    """Return a reader of made cgroups."""
    own = tmp_path / "cgroup"
    own.write_text(own_group)
    for name, content in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return CgroupMemory(own, tmp_path / "groups")


def test_memory_of_cgroups_version_2_is_described(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 17\noom 3\noom_kill 3\noom_group_kill 0"
    files = {"memory.max": 512 * MIB, "memory.current": 100 * MIB, "memory.peak": 512 * MIB, "memory.events": events}
    read = memory(tmp_path, "0::/job/a\n", {f"job/a/{name}": content for name, content in files.items()})
    assert read.oom_kills() == 3
    assert read.describe(2) == (
        "cgroup /job/a: memory.max 512 MiB, memory.current 100 MiB, memory.peak 512 MiB, "
        "oom_kill 2 before and 3 after"
    )


def test_the_least_limit_of_those_above_counts(tmp_path: Path) -> None:
    files = {
        "job/memory.max": 256 * MIB,
        "job/memory.current": 255 * MIB,
        "job/a/memory.max": "max",
        "job/a/memory.current": 10 * MIB,
        "job/a/memory.events": "oom_kill 1",
    }
    decision = memory(tmp_path, "0::/job/a\n", files).describe(0)
    assert decision == "cgroup /job: memory.max 256 MiB, memory.current 255 MiB, oom_kill 0 before and 1 after"


def test_memory_of_a_cgroup_without_a_limit_is_its_own(tmp_path: Path) -> None:
    files = {"a/memory.max": "max", "a/memory.current": 10 * MIB}
    assert memory(tmp_path, "0::/a\n", files).describe(None) == "cgroup /a: memory.max max, memory.current 10 MiB"


def test_memory_of_cgroups_version_1_is_described(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": 64 * MIB,
        "memory/job/memory.usage_in_bytes": 63 * MIB,
        "memory/job/memory.max_usage_in_bytes": 64 * MIB,
        "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 9",
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 70 * MIB,
    }
    read = memory(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/job\n1:name=systemd:/\n0::/\n", files)
    assert read.oom_kills() == 9
    assert read.describe(9) == (
        "cgroup /job: memory.limit_in_bytes 64 MiB, memory.usage_in_bytes 63 MiB, memory.max_usage_in_bytes 64 MiB, "
        "oom_kill 9 before and 9 after"
    )


@pytest.mark.parametrize("own_group", ["", "0::/\n", "garbage\n", "4:memory:/gone\n"])
def test_without_memory_cgroups_the_machines_numbers_are_used(tmp_path: Path, own_group: str) -> None:
    read = memory(tmp_path, own_group, {})
    assert read.oom_kills() is None
    decision = read.describe(None)
    assert decision.startswith("this machine: MemTotal ")
    assert "MemAvailable" in decision
