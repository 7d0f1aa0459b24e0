"""The daemon's settings, read from environment variables by the table in `variables`, and the policies they name.

A policy is a plug-in: an entry point that a setting names as NAME or NAME:ARGUMENT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from pympsd.vocabulary import files, variables
from pympsd.vocabulary.limits import BadLimit, ClientPriority, ThreadPercentage
from pympsd.vocabulary.shares import BY_NAME, read_shares
from pympsd.vocabulary.shares import VARIABLE as USER_SHARES
from pympsd.vocabulary.variables import MEMORY_LIMITS, PERCENTAGE, PRIORITY, BadSetting, Reader, read

VENDOR_SERVER: Final = "PYMPSD_VENDOR_SERVER"
SCHEDULING_POLICY: Final = "PYMPSD_SCHEDULING_POLICY"
SCHEDULING_POLICIES: Final = "pympsd.scheduling_policies"
"""The group of entry points that PYMPSD_SCHEDULING_POLICY names: whose work an emulated device runs next."""
TURN_POLICY: Final = "PYMPSD_TURN_POLICY"
TURN_POLICIES: Final = "pympsd.turn_policies"
"""The group of entry points that PYMPSD_TURN_POLICY names: which of the waiting users gets the next turn."""


@frozen
class Settings:
    """The settings of a daemon, from its environment.

    ``complaints`` has a sentence for each invalid value that was replaced by its default; other invalid values raise
    BadSetting when they are read.
    """

    pipe_directory: str
    log_directory: str
    backend: str
    """The name of the backend; ``auto`` until the machine's devices are known (devices/discovery.py)."""
    emulated_devices: str
    visible_devices: str | None
    thread_percentage: ThreadPercentage
    client_priority: ClientPriority
    log_dialect: str = variables.DIALECTS[0]
    complaints: tuple[str, ...] = ()
    memory_limits: str = ""
    """The text of the variable (``0=1G,GPU-...=512MB``), because the devices are not known here."""
    overtaking_seconds: float = 30.0
    """The seconds for which new clients of the active user may overtake a waiting user; 0 if they never may."""
    vendor_server: str = ""
    """The path of the driver's server, for the vendor backend; empty means the first on PATH that is not pympsd's."""
    driver: int = 0
    """The requested branch of the driver; 0 means the branch of the machine's driver."""
    users: str = variables.USERS[0]
    unmapped_users: str = variables.UNMAPPED_USERS[0]
    user_shares: dict[str, int] = field(factory=dict)
    """The shares of each user that an administrator has set, by resource."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings of a daemon. An empty variable counts as not set.

        CUDA_VISIBLE_DEVICES is the exception: an empty list hides every device, as it does in CUDA.

        Raises:
            BadSetting: A value is invalid, and the daemon must not start with its default instead.
        """
        return cls(
            pipe_directory=files.pipe_directory(dict(environment)),
            log_directory=files.log_directory(dict(environment)),
            backend="emulated" if variables.selects_emulated(environment) else read(environment, variables.BACKEND),
            emulated_devices=environment.get(variables.EMULATED_DEVICES, "") or "H200",
            visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
            thread_percentage=_read_or_none(PERCENTAGE, environment) or ThreadPercentage(),
            client_priority=_read_or_none(PRIORITY, environment) or ClientPriority(),
            log_dialect=read(environment, variables.LOG_DIALECT),
            driver=int(read(environment, variables.DRIVER_VARIABLE) or 0),
            complaints=_complaints(environment),
            memory_limits=environment.get(MEMORY_LIMITS[0]) or environment.get(MEMORY_LIMITS[1], ""),
            overtaking_seconds=float(read(environment, variables.OVERTAKING_LIMIT)),
            vendor_server=environment.get(VENDOR_SERVER, ""),
            users=read(environment, variables.USERS_VARIABLE),
            unmapped_users=read(environment, variables.UNMAPPED_USERS_VARIABLE),
            user_shares=read_shares(filter(None, [read(environment, USER_SHARES)])),
        )


def add_shares(settings: Settings, texts: Sequence[str], protocol: int) -> Settings:
    """Return settings with the shares that the option gives, which takes precedence over the variable.

    Shares of resources that the protocol does not have are added to the complaints.
    """
    shares = {**settings.user_shares, **read_shares(texts)}
    idle = [name for name in shares if protocol == 2 and BY_NAME[name].is_named]
    complaints = [f"users have no share of {name} in protocol 2, which has no named servers" for name in idle]
    return evolve(settings, user_shares=shares, complaints=(*settings.complaints, *complaints))


def check_executor_settings(environment: Mapping[str, str], backend: str) -> None:
    """Raise BadSetting for a setting with which no executor could start, although the daemon could.

    ``backend`` is the resolved one: only executors on a GPU read the number of queues.
    """
    read(environment, variables.WORKER)
    if backend == "emulated":
        for name in (variables.STRICT_BOUNDS, variables.TIER, variables.KERNEL_THREADS, variables.KERNEL_CACHE):
            read(environment, name)
    if backend == "cuda":
        read(environment, variables.CONNECTIONS)


_RECORDED: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    PERCENTAGE: (ThreadPercentage.parse, f"{PERCENTAGE} should be between (0.0, 100.0]"),
    PRIORITY: (ClientPriority.parse, f"{PRIORITY} should be between [0,1]"),
}
"""The parser of each variable, and the complaint of the vendor's daemon about a value that cannot be read."""


def _complaints(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a complaint for each wrong value that does not prevent a start. The devices' memory limits are checked
    elsewhere.
    """
    complaints = variables.problems(environment, Reader.DAEMON, but_for=MEMORY_LIMITS)
    for name, (_, complaint) in _RECORDED.items():
        # A client's percentage can be by device; the daemon's is one number.
        if environment.get(name) and _read_or_none(name, environment) is None:
            complaints[name] = complaint
    return tuple(complaints.values())


def _read_or_none(name: str, environment: Mapping[str, str]) -> Any:
    """Return the value of a variable of _RECORDED; None if it is empty, or not in the allowed form."""
    try:
        return _RECORDED[name][0](environment.get(name) or "")
    except BadLimit:
        return None


METHODS: Final = {
    SCHEDULING_POLICIES: ("add", "remove", "drop", "next", "charge"),
    TURN_POLICIES: ("__call__",),
}
"""The methods that a policy of each group must have."""


def load_policy(group: str, variable: str, text: str) -> Any:
    """Return the policy that a setting names: call its entry point with the argument ("" without one); raise
    BadSetting.
    """
    from importlib.metadata import entry_points  # it takes 10 ms, and few processes have a policy

    name, _, argument = text.partition(":")
    points = {point.name: point for point in entry_points(group=group)}
    if name not in points:
        names = ", ".join(sorted(points))
        raise BadSetting(f"{variable} must be one of {names}, or an entry point of the group {group}; not {name!r}")
    try:
        policy = points[name].load()(argument)
    except ValueError as error:
        raise BadSetting(f"{variable}={text}: {error}") from None
    except Exception as error:  # a plug-in may raise anything, and so may its modules when they are imported
        where = f"{points[name].value} cannot be used: {type(error).__name__}: {error}"
        raise BadSetting(f"{variable}={text}: {where}") from error
    missing = [method for method in METHODS[group] if not callable(getattr(policy, method, None))]
    if missing:
        has = f"the entry point must return a policy, but {type(policy).__name__} has no {', '.join(missing)}"
        raise BadSetting(f"{variable}={text}: {points[name].value} cannot be used: {has}")
    return policy
