"""The daemon's settings, read from environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen

from pympsd.vocabulary import files
from pympsd.vocabulary.limits import BadLimit, ClientPriority, ThreadPercentage
from pympsd.vocabulary.shares import BY_NAME, BadShare, read_shares
from pympsd.vocabulary.shares import VARIABLE as USER_SHARES

BACKENDS: Final = ("auto", "vendor", "cuda", "emulated")
VENDOR_SERVER: Final = "PYMPSD_VENDOR_SERVER"
WORKER: Final = "PYMPSD_WORKER"
WORKERS: Final = ("auto", "native", "python")
"""auto: native if that helps and is available; native: required; python: never native."""
CONNECTIONS: Final = "PYMPSD_DEVICE_CONNECTIONS"
"""The number of hardware queues of a context: each costs start time, but 16 clients on the driver's 8 run as 8."""
STRICT_BOUNDS: Final = "PYMPSD_STRICT_BOUNDS"
"""1: kernels of the emulated GPU reach the bytes that were asked for; 0: and those up to the hardware's next unit."""
SCHEDULING_POLICY: Final = "PYMPSD_SCHEDULING_POLICY"
SCHEDULING_POLICIES: Final = "pympsd.scheduling_policies"
"""The group of entry points that PYMPSD_SCHEDULING_POLICY names: whose work an emulated device runs next."""
TURN_POLICY: Final = "PYMPSD_TURN_POLICY"
TURN_POLICIES: Final = "pympsd.turn_policies"
"""The group of entry points that PYMPSD_TURN_POLICY names: which of the waiting users gets the next turn."""
MOST_CONNECTIONS: Final = 32
"""CUDA's maximum."""
DIALECTS: Final = ("documented", "r580", "json")
"""The wording of log lines: that of the MPS documents, that of driver 580, or JSON objects."""
USERS: Final = ("in-turn", "together")
"""Whether users take turns with one server, or have servers at the same time."""


UNMAPPED_USERS: Final = ("refuse", "nobody")
"""What becomes of clients whose user has no number in the daemon's user namespace: refused, or served as nobody."""


class BadSetting(ValueError):
    """A setting that prevents a start; the message names the variable and what is allowed."""


@frozen
class Settings:
    """A daemon's settings; ``complaints`` are about invalid values that were replaced by defaults."""

    pipe_directory: str
    log_directory: str
    backend: str
    """``auto`` until the machine's devices are known (devices/discovery.py)."""
    emulated_devices: str
    visible_devices: str | None
    thread_percentage: ThreadPercentage
    client_priority: ClientPriority
    log_dialect: str = "documented"
    complaints: tuple[str, ...] = ()
    memory_limits: str = ""
    """As given (``0=1G,GPU-...=512MB``): the devices are not known here."""
    turn_patience: float = 30.0
    """Seconds for which newcomers of the active user may overtake a waiting user; 0: they never may."""
    vendor_server: str = ""
    """The path of the driver's server, for the vendor backend; empty: the first of PATH that is not ours."""
    users: str = "in-turn"
    unmapped_users: str = "refuse"
    user_shares: dict[str, int] = field(factory=dict)
    """What an administrator has set of each user's shares, by resource."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read settings; raise BadSetting if one prevents a start. An empty PYMPSD_ variable counts as not set."""
        complaints: list[str] = []
        return cls(
            pipe_directory=files.pipe_directory(dict(environment)),
            log_directory=files.log_directory(dict(environment)),
            backend=_backend(
                environment.get("PYMPSD_BACKEND") or "auto", bool(environment.get("PYMPSD_EMULATED_DEVICES"))
            ),
            emulated_devices=environment.get("PYMPSD_EMULATED_DEVICES", "") or "H200",
            visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
            thread_percentage=_percentage(environment, complaints),
            client_priority=_priority(environment, complaints),
            log_dialect=_dialect(environment.get("PYMPSD_LOG_DIALECT") or "documented"),
            complaints=tuple(complaints),
            # The documents use the second name once.
            memory_limits=environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            or environment.get("CUDA_MPS_DEVICE_MEM_LIMIT", ""),
            turn_patience=_patience(environment.get("PYMPSD_TURN_PATIENCE") or "30"),
            vendor_server=environment.get(VENDOR_SERVER, ""),
            users=_users(environment.get("PYMPSD_USERS") or "in-turn"),
            unmapped_users=_unmapped_users(environment.get("PYMPSD_UNMAPPED_USERS") or "refuse"),
            user_shares=_user_shares(environment.get(USER_SHARES, "")),
        )


def with_shares(settings: Settings, texts: Sequence[str], protocol: int) -> Settings:
    """Return settings with the shares that the option gives, which beats the variable.

    Shares of what the protocol does not have are among the complaints.
    """
    given = {**settings.user_shares, **read_shares(texts)}
    idle = [name for name in given if protocol == 2 and BY_NAME[name].is_named]
    complaints = [f"users have no share of {name} in protocol 2, which has no named servers" for name in idle]
    return evolve(settings, user_shares=given, complaints=(*settings.complaints, *complaints))


def _backend(text: str, is_described: bool) -> str:
    if text not in BACKENDS:
        raise BadSetting(f"PYMPSD_BACKEND is one of {', '.join(BACKENDS)}, not {text!r}")
    # A description of an emulated machine selects it.
    return "emulated" if text == "auto" and is_described else text


def check_executor_settings(environment: Mapping[str, str], backend: str) -> None:
    """Raise BadSetting for a setting that would end every executor under a running daemon, one context after another.

    ``backend`` is the resolved one: only executors on a GPU read the number of queues.
    """
    chosen_worker(environment)
    if backend == "emulated":
        has_strict_bounds(environment)
    if backend == "cuda":
        chosen_connections(environment)


def chosen_worker(environment: Mapping[str, str]) -> str:
    """Return what executes clients' records, one of WORKERS; raise BadSetting."""
    worker = environment.get(WORKER) or WORKERS[0]
    if worker not in WORKERS:
        raise BadSetting(f"{WORKER} is one of {', '.join(WORKERS)}, not {worker!r}")
    return worker


def chosen_connections(environment: Mapping[str, str]) -> str:
    """Return the number of hardware queues of an executor on a GPU, as text; raise BadSetting."""
    connections = environment.get(CONNECTIONS) or str(MOST_CONNECTIONS)
    if connections not in map(str, range(1, MOST_CONNECTIONS + 1)):
        raise BadSetting(f"{CONNECTIONS} is a number from 1 to {MOST_CONNECTIONS}, not {connections!r}")
    return connections


def has_strict_bounds(environment: Mapping[str, str]) -> bool:
    """Return whether an emulated device's memory ends exactly where it was asked to; raise BadSetting."""
    text = environment.get(STRICT_BOUNDS) or "0"
    if text not in ("0", "1"):
        raise BadSetting(f"{STRICT_BOUNDS} is 0 or 1, not {text!r}")
    return text == "1"


def _dialect(text: str) -> str:
    if text not in DIALECTS:
        raise BadSetting(f"PYMPSD_LOG_DIALECT is one of {', '.join(DIALECTS)}, not {text!r}")
    return text


def _users(text: str) -> str:
    if text not in USERS:
        raise BadSetting(f"PYMPSD_USERS is one of {', '.join(USERS)}, not {text!r}")
    return text


def _unmapped_users(text: str) -> str:
    if text not in UNMAPPED_USERS:
        raise BadSetting(f"PYMPSD_UNMAPPED_USERS is one of {', '.join(UNMAPPED_USERS)}, not {text!r}")
    return text


def _user_shares(text: str) -> dict[str, int]:
    try:
        return read_shares([text]) if text else {}
    except BadShare as error:
        raise BadSetting(f"{USER_SHARES}: {error}") from None


def _patience(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < 1e9:
        raise BadSetting(f"PYMPSD_TURN_PATIENCE is a number of seconds, 0 or more, not {text!r}")
    return seconds


def _percentage(environment: Mapping[str, str], complaints: list[str]) -> ThreadPercentage:
    text = environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    try:
        return ThreadPercentage.parse(text) if text is not None else ThreadPercentage()
    except BadLimit:
        complaints.append("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]")
        return ThreadPercentage()


def _priority(environment: Mapping[str, str], complaints: list[str]) -> ClientPriority:
    text = environment.get("CUDA_MPS_CLIENT_PRIORITY")
    try:
        return ClientPriority.parse(text) if text is not None else ClientPriority()
    except BadLimit:
        complaints.append("CUDA_MPS_CLIENT_PRIORITY should be between [0,1]")
        return ClientPriority()
