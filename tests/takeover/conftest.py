"""The running daemon of tests/service, as the next daemon: it takes over what an earlier one left."""

from __future__ import annotations

from tests.service.conftest import daemon as daemon
