"""Errors of the emulated GPU's memory, translator and kernels."""

from pympsd.errors import DeviceError, InputError
from pympsd.vocabulary.results import Result


class DeviceFault(DeviceError):
    """A kernel (or a copy) made an error at which a GPU would fault; `code` is the CUresult that the client gets."""

    code = Result.ERROR_LAUNCH_FAILED

    def __init__(self, message: str, *, kernel: str | None = None, position: int = 0) -> None:
        """`position` is the thread's index among those that ran together; `block` and `thread` are set later."""
        super().__init__(message)
        self.message = message
        self.kernel = kernel
        self.position = position
        self.block: tuple[int, int, int] | None = None
        self.thread: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        if not self.kernel:
            return self.message
        where = f", block {self.block}, thread {self.thread}" if self.thread is not None else ""
        return f"{self.message} (kernel {self.kernel}{where})"


class IllegalAddress(DeviceFault):
    """An access outside the client's own allocations (CUDA_ERROR_ILLEGAL_ADDRESS)."""

    code = Result.ERROR_ILLEGAL_ADDRESS


class MisalignedAddress(DeviceFault):
    """An access whose address is not a multiple of its size (CUDA_ERROR_MISALIGNED_ADDRESS)."""

    code = Result.ERROR_MISALIGNED_ADDRESS


class DeviceAssertion(DeviceFault):
    """A device-side assert failed (CUDA_ERROR_ASSERT)."""

    code = Result.ERROR_ASSERT


class IllegalInstruction(DeviceFault):
    """An instruction that a GPU cannot execute, such as a copy by an invalid tensor map (..._ILLEGAL_INSTRUCTION)."""

    code = Result.ERROR_ILLEGAL_INSTRUCTION


class InvalidProgramCounter(DeviceFault):
    """A call of an address that is not a function with the call's parameters (CUDA_ERROR_INVALID_PC)."""

    code = Result.ERROR_INVALID_PC


class LaunchFailed(DeviceFault):
    """A trap, or a deadlock of threads (CUDA_ERROR_LAUNCH_FAILED)."""


class OutOfMemory(DeviceFault):
    """No free range is large enough (CUDA_ERROR_OUT_OF_MEMORY)."""

    code = Result.ERROR_OUT_OF_MEMORY


class Cancelled(Exception):
    """The cancel flag was set while a kernel ran."""


class NotPtx(InputError, ValueError):
    """The image is not PTX text (a cubin or a fatbin, for example), so this device cannot execute it."""


class InvalidPtx(InputError, ValueError):
    """PTX with a syntax error, or with something that the emulated GPU does not support.

    `line` is the line of the image, from 1, or None if the error does not belong to one line.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.message = message
        self.line = line


class UnsupportedByMps(InvalidPtx):
    """Valid PTX with a feature that MPS does not support on any device (MPS documents, 2.3.2)."""
