"""Loaded code on the emulated device.

The PTX translator loads the images; its refusals become BackendError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd.wire import fatbin
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout
from pympsd_server.backends.emulated.device.context_memory import ContextMemory
from pympsd_server.backends.emulated.device.kept_programs import KeptPrograms, UsedPrograms
from pympsd_server.backends.emulated.device.launch_limits import attribute_of, max_shared_bytes
from pympsd_server.backends.emulated.scheduling.placement import BlockSize
from pympsd_server.backends.interface import BackendError, Completion, Status
from pympsd_server.ptx.isa.faults import InvalidPtx, NotPtx, UnsupportedByMps
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import Kernel, Program
from pympsd_server.ptx.syntax.tree import Target

_CUBIN: Final = b"\x7fELF"
"""The first bytes of a cubin."""
_programs: Final = KeptPrograms()
_used: Final = UsedPrograms()


def load(image: bytes, compute_capability: tuple[int, int], user: int = 0) -> Program:
    """Load an image for a user's module. If it is a fatbin, load the PTX that it has for the device.

    Raises:
        BackendError: NO_BINARY_FOR_GPU for machine code; INVALID_IMAGE if the image is not text; INVALID_PTX, with
            the line and the instruction, for PTX that cannot be executed, and for the target of another device;
            NOT_SUPPORTED for features that MPS does not support, and for code of other kinds; OUT_OF_MEMORY if the
            user has too many programs. Looking up a kernel of a large image may raise the last three, too.
    """
    with refusals_as_backend_errors():
        try:
            if image.startswith(fatbin.MAGIC):
                image = fatbin.ptx_of(image, compute_capability)
            program = _programs.load(image)
        except fatbin.FatbinError as error:
            raise BackendError(error.code, error.reason) from None
        except NotPtx as error:
            code = Result.ERROR_NO_BINARY_FOR_GPU if image.startswith(_CUBIN) else Result.ERROR_INVALID_IMAGE
            raise BackendError(code, str(error)) from None
        _check_target(program.target, compute_capability)
        _used.check(user, program.kernels)
        return program


@contextmanager
def refusals_as_backend_errors() -> Iterator[None]:
    """Convert the translator's refusals and failures to BackendError INVALID_PTX, or NOT_SUPPORTED for MPS."""
    try:
        yield
    except BackendError:
        raise
    except UnsupportedByMps as error:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, str(error)) from None
    except InvalidPtx as error:
        raise BackendError(Result.ERROR_INVALID_PTX, str(error)) from None
    except RecursionError:
        raise BackendError(Result.ERROR_INVALID_PTX, "the image nests too deeply") from None
    except Exception as error:
        # An image that makes the translator fail must not end the executor.
        reason = f"the translator cannot read this image: {type(error).__name__}: {error}"
        raise BackendError(Result.ERROR_INVALID_PTX, reason) from error


def _check_target(target: Target, capability: tuple[int, int]) -> None:
    if not target.serves(capability):
        only = {"a": "that device alone", "f": "its family alone"}.get(target.suffix, "that and newer devices")
        major, minor = capability
        raise InvalidPtx(
            f".target {target} is for {only}; this device is of compute capability {major}.{minor}: "
            f"compile for sm_{major}{minor} or older",
            target.line,
        )


_CARVEOUT_DEFAULT = -1
_MANAGED_ALIGNMENT = 512
_NO_CLUSTER = dict.fromkeys(
    (
        "CLUSTER_SIZE_MUST_BE_SET",
        "REQUIRED_CLUSTER_WIDTH",
        "REQUIRED_CLUSTER_HEIGHT",
        "REQUIRED_CLUSTER_DEPTH",
        "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
        "DEVICE_NODE_UPDATE_SUPPORTED",
        "SHARED_MEMORY_MODE",
    ),
    0,
)


class ModuleOwner(Protocol):
    """The part of a context that its modules use."""

    properties: DeviceProperties
    memory: ContextMemory
    modules: dict[EmulatedModule, None]

    def check(self) -> None:
        """Raise BackendError with the sticky error of a faulted or destroyed context."""

    def notify(self, done: Completion) -> None:
        """Call ``done`` when all work that is queued now is done."""


class EmulatedModule:
    """One program, linked into a client's memory."""

    def __init__(self, owner: ModuleOwner, program: Program, loaded: LoadedModule) -> None:
        self.owner = owner
        self._kernels, self._names = program.kernels, tuple(program.kernels)
        self.loaded = loaded
        self._variables = tuple(program.globals.values())
        offsets, end = {}, 0
        for variable in self._variables:
            if variable.managed:
                alignment = max(variable.alignment, _MANAGED_ALIGNMENT)
                offsets[variable.name] = -(-end // alignment) * alignment
                end = offsets[variable.name] + max(variable.size, 1)
        self._managed = offsets, end
        self._is_placed = False
        self.checked: dict[tuple[Any, ...], tuple[Kernel, BlockSize, tuple[int, int, int]]] = {}
        """The kernel, the block size and the clusters of each launch shape that streams have checked, by shape."""

    @property
    def functions(self) -> Sequence[FunctionLayout]:
        """The kernels, in the order in which LAUNCH counts them; of untranslated kernels, only the names."""
        return [
            self.function(index) if self._kernels.is_translated(name) else FunctionLayout(name)
            for index, name in enumerate(self._names)
        ]

    def function(self, index: int) -> FunctionLayout:
        """Return a kernel's layout; raise BackendError INVALID_HANDLE, or INVALID_PTX if it cannot be translated."""
        return _function(
            self.kernel(index), self.owner.properties.attributes, self.owner.properties.compute_capability
        )

    @property
    def globals(self) -> Sequence[GlobalLayout]:
        """The variables with their addresses."""
        address_of = self.loaded.address_of
        return [
            GlobalLayout(variable.name, address_of(variable.name), variable.size, variable.managed)
            for variable in self._variables
        ]

    @property
    def managed_bytes(self) -> int:
        """The bytes that the managed variables need."""
        return self._managed[1]

    def place_managed(self, address: int, *, is_in_use: bool) -> None:
        """Move the managed variables to shared memory, and initialise them unless it is in use.

        Raises:
            BackendError: INVALID_VALUE if the module has none, or the second time.
        """
        offsets, size = self._managed
        if self._is_placed or not size:
            raise BackendError(Result.ERROR_INVALID_VALUE, "the module has no managed variables to place")
        self._is_placed = True
        self.owner.check()
        addresses = {name: address + offset for name, offset in offsets.items()}
        self.owner.memory.place_managed(self.loaded, addresses, is_in_use=is_in_use)

    def kernel(self, index: int) -> Kernel:
        """Return a kernel by its index; translate it first if necessary.

        Raises:
            BackendError: INVALID_HANDLE if the kernel does not exist; an error of `load` if it cannot be translated.
        """
        if not 0 <= index < len(self._names):
            reason = f"function {index} does not exist; the module has {len(self._names)} functions"
            raise BackendError(Result.ERROR_INVALID_HANDLE, reason)
        if not self._kernels.is_translated(self._names[index]):
            _used.check(self.loaded.facilities.user, self._kernels)
        with refusals_as_backend_errors():
            return self._kernels[self._names[index]]

    def unload(self) -> None:
        """Free the module's memory once all work queued in the context before is done.

        A faulted context keeps it until it is destroyed.
        """

        def release(status: Status) -> None:
            if status.code is Result.SUCCESS and self.owner.modules.pop(self, self) is None:
                self.owner.memory.unlink(self.loaded)

        self.owner.notify(release)


def _function(kernel: Kernel, attributes: Mapping[str, int], capability: tuple[int, int]) -> FunctionLayout:
    """Return the layout and the attributes of a kernel, as the driver API reports them."""
    major, minor = capability
    # A kernel gets the shared memory that every device has, less its own declarations, unless it opts in to more.
    max_shared = min(attribute_of(attributes, "MAX_SHARED_MEMORY_PER_BLOCK"), max_shared_bytes(attributes))
    return FunctionLayout(
        name=kernel.name,
        parameters=tuple((offset, size) for _, offset, size in kernel.parameters),
        parameter_bytes=kernel.parameter_bytes,
        attributes={
            "MAX_THREADS_PER_BLOCK": kernel.max_threads_per_block,
            "SHARED_SIZE_BYTES": kernel.shared_bytes,
            "CONST_SIZE_BYTES": kernel.constant_bytes,
            "LOCAL_SIZE_BYTES": kernel.local_bytes - kernel.stack_bytes,
            "NUM_REGS": kernel.registers,
            "PTX_VERSION": kernel.target,
            "BINARY_VERSION": major * 10 + minor,
            "CACHE_MODE_CA": 0,
            "MAX_DYNAMIC_SHARED_SIZE_BYTES": max(0, max_shared - kernel.shared_bytes),
            "PREFERRED_SHARED_MEMORY_CARVEOUT": _CARVEOUT_DEFAULT,
            **_NO_CLUSTER,
            **_cluster(kernel),
        },
    )


def _cluster(kernel: Kernel) -> dict[str, int]:
    """Return the attributes of a kernel that was compiled for clusters of one size."""
    if kernel.cluster == (1, 1, 1):
        return {}
    names = ("REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH")
    return dict(zip(names, kernel.cluster, strict=True))
