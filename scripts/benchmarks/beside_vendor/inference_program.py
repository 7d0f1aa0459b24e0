"""One unmodified PyTorch process that serves inference: a client of the ``inference`` section.

A transformer encoder (12 layers, width 768, half precision, one sequence of 128 tokens) is captured once as a CUDA
graph; a step replays the graph and waits for its end, so the GPU bounds the rate, not Python. ``ok`` is written when
the graph is ready. The command ``run BEGIN FINISH`` (monotonic nanoseconds) steps from BEGIN until FINISH and answers
``ok`` and the time of each step in microseconds. The program ends with its standard input.
"""

from __future__ import annotations

import sys
import time

import torch

LAYERS, WIDTH, HEADS, TOKENS = 12, 768, 12, 128
WARM_STEPS = 5


def capture() -> torch.cuda.CUDAGraph:
    """Return the graph of one step, which has run a few times before."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).half().cuda().eval()
    tokens = torch.randn(1, TOKENS, WIDTH, dtype=torch.half, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            model(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(tokens)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def step_times(graph: torch.cuda.CUDAGraph, begin: int, finish: int) -> list[int]:
    """Replay the graph from ``begin`` until ``finish``; return the microseconds of each step."""
    times = []
    while time.monotonic_ns() < begin:
        graph.replay()
        torch.cuda.synchronize()
    start = time.monotonic_ns()
    while start < finish:
        graph.replay()
        torch.cuda.synchronize()
        end = time.monotonic_ns()
        times.append((end - start) // 1000)
        start = end
    return times


def main() -> None:
    """Serve the commands of standard input."""
    torch.manual_seed(1)
    with torch.inference_mode():
        graph = capture()
        print("ok", flush=True)
        for line in sys.stdin:
            _, begin, finish = line.split()
            print("ok", *step_times(graph, int(begin), int(finish)), flush=True)


if __name__ == "__main__":
    main()
