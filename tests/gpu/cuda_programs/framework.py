"""A program of a framework: framework.py NAME says "connected" with a context made, waits for a line, computes.

Its last line is "right" or "wrong"; "absent: ..." where the framework has no GPU. ``training``: PyTorch trains until
a line "stop", and answers "until N" with a digest of the first N losses once they are there.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from typing import Any


def print_line(text: str) -> None:
    """Print a line, and flush it."""
    print(text, flush=True)


def connect() -> None:
    """Wait until all programs are connected."""
    print_line("connected")
    sys.stdin.readline()


def torch_module() -> Any:
    """Return PyTorch, on the GPU and deterministic; end if this PyTorch does not support GPUs."""
    import torch

    if torch.version.cuda is None:
        print_line("absent: PyTorch is built without CUDA")
        sys.exit()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    return torch


def run_torch() -> bool:
    """Multiply matrices, and differentiate; compare with the processor's results.

    EXPECTED_SMS is the number of SMs that the program must see.
    """
    torch = torch_module()
    torch.zeros(1, device="cuda")
    connect()
    left, right = torch.rand(512, 512, dtype=torch.float64), torch.rand(512, 512, dtype=torch.float64)
    on_gpu = left.cuda().requires_grad_()
    (on_gpu @ right.cuda()).sum().backward()
    product = (left.cuda() @ right.cuda()).cpu()
    gradient = right.sum(1).expand(512, 512)
    sms = str(torch.cuda.get_device_properties(0).multi_processor_count)
    is_right = torch.allclose(product, left @ right) and torch.allclose(on_gpu.grad.cpu(), gradient)
    return bool(is_right) and sms == os.environ.get("EXPECTED_SMS", sms)


def run_cupy() -> bool:
    """Multiply matrices, transform, and compile a kernel."""
    import cupy as cp
    import numpy as np

    cp.zeros(1)
    connect()
    rng = np.random.default_rng(1)
    left, right = rng.random((256, 256)), rng.random((256, 256))
    product = cp.asnumpy(cp.asarray(left) @ cp.asarray(right))
    spectrum = cp.asnumpy(cp.fft.fft(cp.asarray(left[0])))
    twice = cp.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x", "twice")
    doubled = cp.asnumpy(twice(cp.asarray(left)))
    pairs = ((product, left @ right), (spectrum, np.fft.fft(left[0])), (doubled, 2 * left))
    return all(np.allclose(actual, expected) for actual, expected in pairs)


def run_jax() -> bool:
    """Compile and differentiate a function."""
    import jax
    import numpy as np

    if jax.default_backend() != "gpu":
        print_line("absent: JAX has no GPU backend")
        sys.exit()
    jax.numpy.zeros(1).block_until_ready()
    connect()
    inputs = np.linspace(-1, 1, 1000, dtype=np.float32)
    slope = jax.jit(jax.vmap(jax.grad(lambda x: jax.numpy.sin(x) * x)))
    return bool(np.allclose(np.asarray(slope(inputs)), np.cos(inputs) * inputs + np.sin(inputs), atol=1e-4))


def train() -> None:
    """Train a small network; the losses of so many steps are the same in every run."""
    import select

    torch = torch_module()
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    inputs = torch.rand(512, 64).cuda()
    expected = inputs.sum(1, keepdim=True)
    print_line("connected")
    losses, requested = [], 0
    while True:
        if select.select([0], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line.startswith("until "):
                break
            requested = int(line.split()[1])
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(inputs), expected)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if requested and len(losses) >= requested:
            print_line(hashlib.sha256(struct.pack(f"<{requested}d", *losses[:requested])).hexdigest())
            requested = 0


def main(name: str) -> None:
    """Run one."""
    if name == "training":
        train()
    else:
        run = {"torch": run_torch, "cupy": run_cupy, "jax": run_jax}[name]
        print_line("right" if run() else "wrong")


main(sys.argv[1])
