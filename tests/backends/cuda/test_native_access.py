"""A native worker gets the structures that contexts, streams and modules count by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects import context_resources
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.cuda.objects.module_image import Cubin
from pympsd_server.backends.cuda.objects.native_access import CudaNativeAccess
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.states import DriverCalls, NativeAccess, NativeDevice


def test_states_are_those_of_the_objects(
    make_context: Callable[..., CudaContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_resources, "loadable", lambda driver, image: (image, Cubin((), 0)))
    access: NativeAccess = CudaNativeAccess(DriverCalls(), lambda code: BackendError(Result(code), "refused"))
    context = make_context(1)
    state, stream = access.context_state(context), context.default_stream
    assert state.default_stream.contents.handle == access.stream_state(stream).handle == int(stream.handle)
    assert access.stream_state(stream).is_default
    assert len(access.kernel_rows(context.load_module(b""))) == 0
    assert not state.closed
    context.destroy()
    assert state.closed


def test_a_device_whose_streams_cannot_write_marks_is_not_a_native_device(device: CudaDevice) -> None:
    assert not isinstance(device, NativeDevice)
