"""How fast the Compressive Transformer learns and acts, beside the only public package, and how its cost grows.

    pip install -e .[bench,plot]
    python -m benchmarks.core [--seconds 10] [--plot docs/core-cost.svg]
    python -m benchmarks.core --device cuda --batch 64 --autocast --compile --peak-tflops 989

* learning: forward + backward of one segment a call with full memories, task and compression losses.
* acting: a whole segment step by step, with cached keys and values and without; and, as code without steps must do it,
  each step by computing the segment anew: all of it (for fixed shapes) or as far as it has come (half on average).
* scaling: learning over n_cm, and over c at the same number of slots.

The peer is compressive-transformer-pytorch 0.4.0 without its embedding and output layers. On a CPU one thread is used
and rates are per second of CPU time, which other processes disturb less; on a GPU they are per second.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, detach_state, state_bytes, state_to
from benchmarks.common import in_turns, picture, rounded, run

SIZE = 256
LAYERS = 4
HEADS = 4
SEGMENT = 128
MEMORY = 128
COMPRESSED = 64
RATE = 4
LENGTHS = {"whole_segment_anew": [SEGMENT], "segment_so_far_anew": list(range(4, SEGMENT, 8))}
"""Steps that are computed for one step; the mean of the latter is half a segment."""
LEARNING: dict[str, dict[str, Any]] = {
    "post_residual": {},
    "pre_residual": {"norm": "pre"},
    "pre_gru": {"norm": "pre", "gate": "gru"},
    "transformer_xl_same_slots": {"memory_size": MEMORY + COMPRESSED, "compressed_size": 0},
}
PEERS = {"peer_residual": False, "peer_gru": True}
"""Whether the peer's residual connections are gated; it is always pre-norm."""
PAIRS = {"post_residual": "peer_residual", "pre_residual": "peer_residual", "pre_gru": "peer_gru"}
"""Which of our variants is compared with which peer."""


@dataclass
class Options:
    seconds: float = 10.0
    """Time for each figure, after a warm-up."""
    device: str = "cpu"
    """cpu or cuda."""
    turns: int = 10
    """Measurements of each figure, within that time; the median counts."""
    batch: int = 4
    """Rows."""
    autocast: bool = False
    """Learn under bfloat16 autocast."""
    compile: bool = False
    """Also learn with torch.compile."""
    peak_tflops: float | None = None
    """The best that the device can do, for the model FLOPs utilization."""
    plot: Path | None = None
    """Where to draw the scaling curves (needs the extra `plot`)."""

    def clock(self) -> float:
        """Seconds of CPU time, or of time on a GPU."""
        if self.device != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def rates(self, works: dict[Any, Callable[[], int]]) -> dict[Any, float]:
        """Tokens a second; the warm-up compiles, and fills memories."""
        return rounded(in_turns(works, self.seconds, self.turns, self.clock, warm_up=3))

    def inputs(self) -> Tensor:
        """[B, n_s, D] at random."""
        return torch.randn(self.batch, SEGMENT, SIZE, device=self.device)


class Subject(NamedTuple):
    """What is measured: a network, and its call from inputs [B, T, D] and a state to features, next state and loss.

    state: one with full memories.
    """

    network: Any
    call: Callable[[Tensor, Any], tuple[Tensor, Any, Any]]
    state: Any


def ours(options: Options, /, *, compiled: bool = False, **fields: Any) -> Subject:
    """Our core at the sizes of the module's docstring, except for `fields`."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "segment_size": SEGMENT,
        "memory_size": MEMORY,
        "compressed_size": COMPRESSED,
        "compression_rate": RATE,
    }
    config = CompressiveTransformerConfig(SIZE, LAYERS, HEADS, mlp_size=4 * SIZE, **(sizes | fields))
    core = CompressiveTransformer(config).to(options.device)

    def call(inputs: Tensor, state: Any, forward: Any = core) -> tuple[Tensor, Any, Any]:
        reset = torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        output = forward(inputs, reset, state)
        loss = sum(loss.value for loss in output.losses.values())
        return output.features, detach_state(output.state), loss

    state = filled(call, options, state_to(core.initial_state(options.batch), options.device))
    if compiled:
        return Subject(core, partial(call, forward=torch.compile(core, fullgraph=True)), state)
    return Subject(core, call, state)


def peers(options: Options) -> dict[str, Subject]:
    """The peer at the same sizes; empty if it is not installed."""
    try:
        from compressive_transformer_pytorch import CompressiveTransformer as Peer
    except ImportError:
        return {}
    sizes = {"dim": SIZE, "depth": LAYERS, "heads": HEADS, "seq_len": SEGMENT, "mem_len": MEMORY}
    sizes |= {"num_tokens": 1, "cmem_len": COMPRESSED, "cmem_ratio": RATE}

    def make(gated: bool) -> Subject:
        torch.manual_seed(0)
        peer = Peer(gru_gated_residual=gated, **sizes).to(options.device)
        peer.token_emb = nn.Identity()
        peer.to_logits = nn.Identity()

        def call(inputs: Tensor, memory: Any) -> tuple[Tensor, Any, Any]:
            return peer(inputs, memories=memory)

        return Subject(peer, call, filled(call, options, None))

    return {name: make(gated) for name, gated in PEERS.items()}


@torch.no_grad()
def filled(call: Callable[[Tensor, Any], tuple[Tensor, Any, Any]], options: Options, state: Any) -> Any:
    """The state after five segments."""
    for _ in range(5):
        _, state, _ = call(options.inputs(), state)
    return state


def learning(subject: Subject, options: Options) -> Callable[[], int]:
    """Forward and backward of one segment, from memory to memory."""
    inputs = options.inputs().requires_grad_()
    state = subject.state
    subject.network.train()

    def update() -> int:
        nonlocal state
        subject.network.zero_grad(set_to_none=True)
        precision = torch.autocast(options.device, torch.bfloat16) if options.autocast else nullcontext()
        with precision:
            features, state, loss = subject.call(inputs, state)
        (features.float().square().mean() + loss).backward()
        return options.batch * SEGMENT

    return update


def acting(subject: Subject, options: Options, cached: bool) -> Callable[[], int]:
    """A whole segment in calls of one step, the update of the memories included."""
    inputs = options.inputs()
    core = subject.network.eval()
    state = core.with_cache(subject.state) if cached else subject.state

    @torch.no_grad()
    def segment() -> int:
        nonlocal state
        for step in inputs.split(1, dim=1):
            _, state, _ = subject.call(step, state)
        return options.batch * SEGMENT

    return segment


def acting_anew(subject: Subject, options: Options, lengths: list[int]) -> Callable[[], int]:
    """Steps each of which computes that many steps of the segment."""
    inputs = options.inputs()
    subject.network.eval()

    @torch.no_grad()
    def steps() -> int:
        for length in lengths:
            subject.call(inputs[:, :length], subject.state)
        return options.batch * len(lengths)

    return steps


def scaling(options: Options) -> dict[str, dict[int, float]]:
    """Learning over n_cm at c = 4, and over c at n_cm = 64: what more slots cost, and that c itself costs little."""
    values: dict[str, tuple[int, ...]] = {
        "compressed_size": (0, 64, 128, 256, 512),
        "compression_rate": (1, 2, 4, 8),
    }
    works = {}
    for field in values:
        for value in values[field]:
            fields: dict[str, Any] = {field: value}
            works[field, value] = learning(ours(options, **fields), options)
    measured = options.rates(works)
    curves: dict[str, dict[int, float]] = {}
    for field in values:
        curves[f"by_{field}"] = {value: measured[field, value] for value in values[field]}
    return curves


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """Both curves of `scaling`, and the reach of each size."""
    sizes = curves["by_compressed_size"]
    rates = curves["by_compression_rate"]
    top = 1.15 * max([*sizes.values(), *rates.values()])
    with picture(path, columns=2) as (left, right):
        left.set(xlabel="compressed slots n_cm (c = 4)", ylabel="tokens / CPU-second", title="more slots cost time")
        right.set(xlabel="compression rate c (n_cm = 64)", title="a higher rate does not", xticks=list(rates))
        draw_curve(left, sizes, steps_of_one=RATE)
        draw_curve(right, rates, steps_of_one=COMPRESSED)
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.margins(0.12)
            axes.set_ylim(0, top)


def draw_curve(axes: Any, points: dict[int, float], steps_of_one: int) -> None:
    """A curve whose points say the reach; `steps_of_one` is what one more of x adds to the reach of a layer."""
    axes.plot(list(points), list(points.values()), "o-")
    for x, y in points.items():
        reach = LAYERS * (MEMORY + steps_of_one * x)
        axes.annotate(f"reach {reach}", (x, y), ha="center", fontsize=7, textcoords="offset points", xytext=(0, 8))


def measure_learning(options: Options, others: dict[str, Subject]) -> dict[str, float]:
    """Tokens a second of learning: of our variants, of the same compiled if options ask for it, and of the peers."""
    works = {}
    for name, fields in LEARNING.items():
        works[name] = learning(ours(options, **fields), options)
    if options.compile:
        for name, fields in LEARNING.items():
            works[f"{name}_compiled"] = learning(ours(options, compiled=True, **fields), options)
    for name, peer in others.items():
        works[name] = learning(peer, options)
    return options.rates(works)


def measure_acting(options: Options, core: Subject, others: dict[str, Subject]) -> dict[str, float]:
    """Tokens a second of acting: step by step, and with each step computed anew from its segment."""
    works = {
        "cached": acting(core, options, cached=True),
        "uncached": acting(core, options, cached=False),
    }
    for name, lengths in LENGTHS.items():
        works[name] = acting_anew(core, options, lengths)
    for peer_name, peer in others.items():
        for name, lengths in LENGTHS.items():
            works[f"{peer_name}_{name}"] = acting_anew(peer, options, lengths)
    return options.rates(works)


def ratios(learned: dict[str, float], acted: dict[str, float], compare: bool) -> dict[str, float]:
    """Our rates over others: acting with a cache over acting without, and learning over the peers if there are any."""
    found = {}
    for name, rate in acted.items():
        if name.endswith("anew"):
            found[f"acting_cached_over_{name}"] = acted["cached"] / rate
    if compare:
        for name, peer in PAIRS.items():
            found[f"learning_{name}_over_{peer}"] = learned[name] / learned[peer]
    return rounded(found, digits=2)


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    core = ours(options)
    others = peers(options)
    learned = measure_learning(options, others)
    acted = measure_acting(options, core, others)
    curves = scaling(options)
    if options.plot:
        draw(curves, options.plot)

    # The share of the device's peak that learning uses.
    with FlopCounterMode(display=False) as operations:
        tokens = learning(core, options)()
    flops = operations.get_total_flops() / tokens
    utilization = None
    if options.peak_tflops:
        utilization = round(learned["post_residual"] * flops / options.peak_tflops / 1e12, 4)

    initial = core.network.initial_state(1)
    device = f"cpu, 1 thread of {os.cpu_count()}"
    if options.device == "cuda":
        device = torch.cuda.get_device_name()
    peer = "not installed: pip install -e .[bench]"
    if others:
        peer = "compressive-transformer-pytorch 0.4.0"
    return {
        "model": "d 256, 4 layers, 4 heads, mlp 1024, n_s 128, n_m 128, n_cm 64, c 4",
        "batch": options.batch,
        "device": device,
        "dtype": "bfloat16 autocast" if options.autocast else "float32",
        "torch": torch.__version__,
        "peer": peer,
        "learning_tokens_per_second": learned,
        "acting_tokens_per_second": acted,
        "ratios": ratios(learned, acted, compare=bool(others)),
        "learning_flops_per_token": round(flops),
        "model_flops_utilization": utilization,
        "state_bytes_per_row": {
            "stored": state_bytes(initial),
            "with_cache": state_bytes(core.network.with_cache(initial)),
        },
        "scaling": curves,
    }


if __name__ == "__main__":
    run(main, Options)
