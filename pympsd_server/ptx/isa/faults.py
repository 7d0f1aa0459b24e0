"""Define the errors of the emulated GPU's memory, translator and kernels."""

from pympsd.errors import DeviceError, InputError
from pympsd.vocabulary.results import Result


class DeviceFault(DeviceError):
    """Raised when a kernel or a copy makes an error at which a GPU would fault. `code` is the client's CUresult."""

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
    """Raised for an access outside the client's own allocations (CUDA_ERROR_ILLEGAL_ADDRESS)."""

    code = Result.ERROR_ILLEGAL_ADDRESS


class MisalignedAddress(DeviceFault):
    """Raised for an access whose address is not a multiple of its size (CUDA_ERROR_MISALIGNED_ADDRESS)."""

    code = Result.ERROR_MISALIGNED_ADDRESS


class DeviceAssertion(DeviceFault):
    """Raised when a device-side assert has failed (CUDA_ERROR_ASSERT)."""

    code = Result.ERROR_ASSERT


class IllegalInstruction(DeviceFault):
    """Raised for an instruction that a GPU cannot execute, such as a copy by an invalid tensor map.

    The CUresult is CUDA_ERROR_ILLEGAL_INSTRUCTION.
    """

    code = Result.ERROR_ILLEGAL_INSTRUCTION


class InvalidProgramCounter(DeviceFault):
    """Raised for a call of an address that is not a function with the call's parameters (CUDA_ERROR_INVALID_PC)."""

    code = Result.ERROR_INVALID_PC


class LaunchFailed(DeviceFault):
    """Raised for a trap, or a deadlock of threads (CUDA_ERROR_LAUNCH_FAILED)."""


class OutOfMemory(DeviceFault):
    """Raised when no free range is large enough (CUDA_ERROR_OUT_OF_MEMORY)."""

    code = Result.ERROR_OUT_OF_MEMORY


class Cancelled(Exception):
    """Raised when the cancel flag was set while a kernel ran."""


class NotPtx(InputError, ValueError):
    """Raised for an image that is not PTX text (a cubin, for example), which this device cannot execute."""


class InvalidPtx(InputError, ValueError):
    """Raised for PTX with a syntax error, or with something that the emulated GPU does not support.

    `line` is the line of the image, from 1, or None if the error does not belong to one line.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.message = message
        self.line = line


class UnsupportedByMps(InvalidPtx):
    """Raised for valid PTX with a feature that MPS does not support on any device (MPS documents, 2.3.2)."""
