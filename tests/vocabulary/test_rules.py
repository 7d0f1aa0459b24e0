"""Limits by rule: which processes fit a condition, and that the first rule that fits holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.vocabulary.rules import KINDS, Condition, Origin, Rule, Unknown, expand_cgroups, first_fitting, is_below

ID = "0123456789abcdef" * 4
POD = "8dd5e6d0-7d1c-4b5f-9a5e-0c6a1f1e2d3c"
MANAGER = "/user.slice/user-1000.slice/user@1000.service"


def _fits(kind: str, *values: str, namespace: str = "serve/chat", **properties: object) -> bool:
    origin = Origin(**{"uid": 1000, "groups": (100, 27), "cgroups": ("/",), "executable": "/bin/x", **properties})  # type: ignore[arg-type]
    return Rule(1, conditions=(Condition(kind, values),)).examine(origin, namespace)[0]


@pytest.mark.parametrize(
    ("kind", "value", "path", "fits"),
    [
        ("cgroup", "/user.slice", "/user.slice", True),
        ("cgroup", "/user.slice", "/user.slice/user-1000.slice/session-1.scope", True),
        ("cgroup", "/user.slice/user-*.slice", "/user.slice/user-1000.slice/session-1.scope", True),
        ("cgroup", "/", "/a", True),
        ("cgroup", "/user.slice", "/user.slice2", False),
        ("cgroup", "/a/*/c", "/a/b/b/c", False),
        ("cgroup", "/a/b", "/a", False),
        ("systemd_unit", "batch.slice", "/batch.slice/job.service", True),
        ("systemd_unit", "ollama*.service", "/system.slice/ollama-2.service", True),
        ("systemd_unit", "batch.slice", f"{MANAGER}/batch.slice", False),
        ("systemd_unit", "user@1000.service", f"{MANAGER}/batch.slice", True),
        ("slurm_job", "17", "/slurm/uid_1000/job_17/step_0", True),
        ("slurm_job", "17", "/system.slice/slurmstepd.scope/job_17/step_0/user/task_0", True),
        ("slurm_job", "*", "/system.slice/node1_slurmstepd.scope/job_9", True),
        ("slurm_job", "17", "/slurm/uid_1000/job_171", False),
        ("slurm_job", "17", f"{MANAGER}/slurm/uid_1000/job_17", False),
        ("kubernetes_pod", POD, f"/kubepods/burstable/pod{POD}/{ID}", True),
        (
            "kubernetes_pod",
            POD,
            f"/kubepods.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri.scope",
            True,
        ),
        ("kubernetes_pod", "*", "/kubepods/burstable", False),
        ("container", ID[:12], f"/docker/{ID}", True),
        ("container", ID, f"/system.slice/docker-{ID}.scope", True),
        ("container", "*", f"/kubepods/pod{POD}/cri-containerd-{ID}.scope", True),
        ("container", "f" * 12, f"/docker/{ID}", False),
        ("container", ID[:12], f"{MANAGER}/libpod-{ID}.scope", False),
    ],
)
def test_a_condition_fits_cgroups_by_path(kind: str, value: str, path: str, fits: bool) -> None:
    assert _fits(kind, value, cgroups=(path,)) is fits


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("user", "1000", True),
        ("user", "100", False),
        ("group", "27", True),
        ("group", "2", False),
        ("executable", "/bin/*", True),
        ("executable", "x", False),
        ("namespace", "serve/chat", True),
        ("namespace", "serve", True),
        ("namespace", "*/chat", True),
        ("namespace", "ser", False),
        ("namespace", "serve/c", False),
    ],
)
def test_a_condition_fits_one_of_its_values(kind: str, value: str, fits: bool) -> None:
    assert _fits(kind, value) is fits
    assert _fits(kind, "nothing", value) is fits, "one of several values is enough"


def test_an_unseen_property_is_unknown_only_to_rules_that_test_the_property() -> None:
    rule = Rule(2, "batch", (Condition("user", ("1",)), Condition("cgroup", ("/a",))))
    assert rule.examine(Origin(7), "")[0] is False, "the user does not fit: nobody asks for the cgroup"
    with pytest.raises(Unknown, match=r"^rule 2 \('batch'\) tests the process's cgroup, but the daemon cannot"):
        rule.examine(Origin(1), "")
    with pytest.raises(Unknown, match="executable"):
        _fits("executable", "/bin/x", executable=None)


CONDITIONS = st.sampled_from(
    [
        *(Condition("user", (uid,)) for uid in "12"),
        *(Condition("cgroup", (path,)) for path in ("/", "/a", "/a/b", "/*/b")),
        *(Condition("group", (gid,)) for gid in "56"),
        *(Condition("namespace", (name,)) for name in ("s", "s/n", "*/m")),
    ]
)
RULES = st.lists(st.lists(CONDITIONS, max_size=2), max_size=5).map(
    lambda each: tuple(Rule(number, conditions=tuple(one)) for number, one in enumerate(each, 1))
)
ORIGINS = st.builds(
    Origin,
    st.sampled_from([1, 2]),
    st.lists(st.sampled_from([5, 6]), unique=True).map(tuple),
    st.lists(st.sampled_from(["/", "/a", "/a/b", "/c/b/d"]), min_size=1, max_size=2).map(tuple),
)


@settings(max_examples=60)
@given(RULES, ORIGINS, st.sampled_from(["s/n", "s/m", "t/n"]))
def test_the_first_rule_holds_all_of_whose_conditions_fit(
    rules: tuple[Rule, ...], origin: Origin, namespace: str
) -> None:
    def alone(condition: Condition) -> bool:
        return Rule(1, conditions=(condition,)).examine(origin, namespace)[0]

    fitting = [rule for rule in rules if all(map(alone, rule.conditions))]
    assert first_fitting(rules, origin, namespace) == (fitting[0] if fitting else None)


@settings(max_examples=100)
@given(st.text(st.sampled_from("/aj*[]!?.user@1slice_podb0-"), max_size=60))
def test_any_path_is_examined(path: str) -> None:
    """A process in a user's own cgroups can have any name there."""
    for kind in KINDS:
        _fits(kind, path or "*", cgroups=(path, f"/slurm{path}"), executable=path)


PATHS = st.lists(st.sampled_from(["a", "b", "pod1"]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(PATHS, max_size=3), PATHS)
def test_the_cgroups_at_or_above_are_those_that_the_others_are_below(cgroups: list[str], path: str) -> None:
    expanded = expand_cgroups(cgroups)
    assert (path in expanded) == any(is_below(cgroup, path) for cgroup in cgroups)
    assert len(set(expanded)) == len(expanded)
    assert expanded[:1] == ["/"][: len(cgroups)]
