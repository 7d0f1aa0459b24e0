"""The driver errors that fault the device: no call succeeds after them, and all completions are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as real

from pympsd_server.backends.cuda.driver.calls import _STICKY_ERRORS
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.interface import BackendError
from tests.backends.contract.port_user import fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder


def test_every_error_that_ends_the_process_is_poisoning() -> None:
    documents = {int(code): " ".join((code.__doc__ or "").split()) for code in real.CUresult}
    if len(set(documents.values())) == 1:
        pytest.skip("these bindings have no documentation of the codes: those before 13.2")
    output = {code for code, document in documents.items() if "process must be terminated" in document}
    assert output
    assert output <= _STICKY_ERRORS


@pytest.mark.parametrize("code", sorted(_STICKY_ERRORS))
def test_a_poisoning_error_completes_all_work_of_all_clients(
    driver: FakeDriver, make_context: Callable[..., CudaContext], code: int
) -> None:
    context, other, done = make_context(1), make_context(2), Recorder()
    address, stream = other.allocate(16), other.default_stream
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    stream.notify(done)
    own = context.allocate(16)
    driver.codes["cuMemsetD8Async"] = code
    with pytest.raises(BackendError):
        context.default_stream.fill(fill(own, 1, 1, 16))
    assert done.wait() == [other.status]
    assert "cuMemsetD8Async" in other.status.reason
    driver.codes.clear()
    driver.run(stream.handle)
    with pytest.raises(BackendError):
        other.allocate(1)
    assert len(done.statuses) == 1
