"""Many clients at the same time: every one gets its own results, and an even share."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor

from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import STORE, RawClient

CLIENTS, ROUNDS = 24, 20


def _work(client: RawClient, salt: int) -> list[int]:
    module, _ = client.load()
    address, values = client.allocate(4096), []
    for number in range(ROUNDS):
        client.launch(module, STORE, struct.pack("=QI", address, salt * 1000 + number))
        values.append(struct.unpack("=I", client.read(address, 4))[0])
        client.good("FREE", client.allocate(1 << 20))
    return values


def test_many_clients_run_at_the_same_time(executor: ExecutorOwner) -> None:
    clients = [executor.attach(client=number, context=number) for number in range(1, CLIENTS + 1)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        results = list(pool.map(_work, clients, range(CLIENTS)))
    assert results == [[salt * 1000 + number for number in range(ROUNDS)] for salt in range(CLIENTS)]
