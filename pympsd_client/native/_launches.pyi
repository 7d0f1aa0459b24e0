from collections.abc import Callable
from typing import Any, Final

BY_POINTERS: Final[tuple[Any, ...]]
MAX_VALUES: Final[int]
MAX_BYTES: Final[int]

def gather(address: int, parameters: tuple[tuple[int, int], ...], size: int, /) -> bytes | None: ...

class Writer:
    def __init__(
        self, keeper: object, address: int, data: int, size: int, tail: int, head: int, asleep: int, /
    ) -> None: ...
    def put(self, record: bytes, /) -> bool: ...

class Launcher:
    epoch: Final[int]
    misses: Final[int]
    needs_plan: Final[bool]
    needs_pulse: Final[bool]
    def __init__(self, slow: Callable[..., tuple[Any, ...]], done: tuple[Any, ...], threads: object, /) -> None: ...
    def cuLaunchKernel(self, *arguments: Any, **keywords: Any) -> tuple[Any, ...]: ...
    def add_plan(
        self,
        epoch: int,
        function: int,
        stream: int,
        sizes: tuple[int, ...],
        types: tuple[Any, ...],
        context: object,
        sequence: Callable[[], int],
        bell: Callable[[], tuple[Any, ...]],
        writer: Writer,
        record: bytes,
        sequence_at: int,
        values: tuple[tuple[int, str] | tuple[int, str, int], ...],
        /,
    ) -> bool: ...
    def invalidate(self) -> None: ...
