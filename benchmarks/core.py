"""How fast the Compressive Transformer learns and acts, beside the only public package, and how its cost grows.

    pip install -e .[bench,plot]
    python benchmarks/core.py [--seconds 10] [--plot docs/core-cost.svg]
    python benchmarks/core.py --device cuda --batch 64 --autocast --compile --peak-tflops 989

Sizes are those at which other code was measured: d 256, 4 layers, 4 heads, n_s 128, n_m 128, n_cm 64, c 4, batch 4.

* learning: forward + backward of one segment a call with full memories, task and compression losses. The variants take
  turns in short bursts, so that whatever else the machine does meets all of them alike.
* acting: a whole segment step by step; with cached keys and values, without, and as code that has no steps must do it:
  each step computes the segment anew, all of it (what fixed shapes ask for) or as far as it has come (half on average).
* scaling: learning over n_cm, and over c at the same number of slots.

The peer is compressive-transformer-pytorch 0.4.0, its embedding and output layer replaced by nothing, so that core is
compared with core. From its second segment on it no longer trains its keys and values; ours trains everything.

On a CPU one thread is used and rates are per second of CPU time, which other processes disturb less than wall time; on
a GPU they are per second. Prints one JSON object.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, detach_state, state_bytes, state_to

SIZE, LAYERS, HEADS, SEGMENT, MEMORY, COMPRESSED, RATE = 256, 4, 4, 128, 128, 64, 4
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


@dataclass
class Options:
    """Measures the core."""

    seconds: float = 10.0
    """Time for each figure, after a warm-up."""
    device: str = "cpu"
    """cpu or cuda."""
    turns: int = 10
    """Bursts in which that time is measured, taken by turns."""
    batch: int = 4
    """Rows."""
    autocast: bool = False
    """Learn under bfloat16 autocast."""
    compile: bool = False
    """Also learn with torch.compile."""
    peak_tflops: float | None = None
    """What the device could do at best, for the model FLOPs utilisation."""
    plot: Path | None = None
    """Where to draw the scaling curves (needs the extra `plot`)."""


def make(options: Options, **fields: Any) -> CompressiveTransformer:
    """Our core at the sizes of the module's docstring, but for `fields`."""
    torch.manual_seed(0)
    sizes = {"segment_size": SEGMENT, "memory_size": MEMORY, "compressed_size": COMPRESSED, "compression_rate": RATE}
    config = CompressiveTransformerConfig(SIZE, LAYERS, HEADS, 4 * SIZE, **{**sizes, **fields})
    return CompressiveTransformer(config).to(options.device)


def make_peer(options: Options, gated: bool) -> nn.Module | None:
    """The peer at the same sizes, or None if it is not installed."""
    try:
        from compressive_transformer_pytorch import CompressiveTransformer as Peer
    except ImportError:
        return None
    torch.manual_seed(0)
    peer = Peer(
        num_tokens=1,
        dim=SIZE,
        depth=LAYERS,
        heads=HEADS,
        seq_len=SEGMENT,
        mem_len=MEMORY,
        cmem_len=COMPRESSED,
        cmem_ratio=RATE,
        gru_gated_residual=gated,
    )
    peer.token_emb, peer.to_logits = nn.Identity(), nn.Identity()
    return peer.to(options.device)


class Rate:
    """Tokens per second of a piece of work that returns how many tokens it did."""

    def __init__(self, work: Callable[[], int], device: str) -> None:
        self.work, self.cuda = work, device == "cuda"
        self.tokens, self.seconds = 0, 0.0
        for _ in range(3):  # warm-up: compilation, and memories that fill
            work()

    def run(self, seconds: float) -> "Rate":
        """Works for about that long."""
        begin, elapsed = self._now(), 0.0
        while elapsed < seconds:
            self.tokens += self.work()
            elapsed = self._now() - begin
        self.seconds += elapsed
        return self

    def __int__(self) -> int:
        return round(self.tokens / self.seconds)

    def _now(self) -> float:
        if not self.cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def in_turns(works: dict[str, Callable[[], int]], options: Options) -> dict[str, int]:
    """The rates of several pieces of work, measured in bursts, by turns."""
    rates = {name: Rate(work, options.device) for name, work in works.items()}
    for _ in range(options.turns):
        for rate in rates.values():
            rate.run(options.seconds / options.turns)
    return {name: int(rate) for name, rate in rates.items()}


def inputs_of(options: Options, steps: int = SEGMENT) -> tuple[Tensor, Tensor]:
    """inputs [B, T, D] and reset [B, T] without any."""
    inputs = torch.randn(options.batch, steps, SIZE, device=options.device)
    return inputs, torch.zeros(options.batch, steps, dtype=torch.bool, device=options.device)


def full_state(core: CompressiveTransformer, options: Options) -> Any:
    """A state whose memories are full."""
    steps = SEGMENT * 5
    with torch.no_grad():
        state = state_to(core.initial_state(options.batch), options.device)
        return core(*inputs_of(options, steps), state).state


def learning(core: CompressiveTransformer, options: Options, compiled: bool = False) -> Callable[[], int]:
    """Forward and backward of one segment, from memory to memory."""
    call = torch.compile(core, fullgraph=True) if compiled else core
    inputs, reset = inputs_of(options)
    inputs.requires_grad_()
    state = full_state(core.train(), options)

    def update() -> int:
        nonlocal state
        core.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16) if options.autocast else nullcontext():
            output = call(inputs, reset, detach_state(state))
        state = output.state
        (output.features.float().square().mean() + sum(loss.value for loss in output.losses.values())).backward()
        return reset.numel()

    return update


def peer_learning(peer: nn.Module, options: Options) -> Callable[[], int]:
    """The same for the peer."""
    inputs, reset = inputs_of(options)
    inputs.requires_grad_()
    memory = None
    peer.train()

    def update() -> int:
        nonlocal memory
        peer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16) if options.autocast else nullcontext():
            features, memory, loss = peer(inputs, memories=memory)
        (features.float().square().mean() + loss).backward()
        return reset.numel()

    return update


def acting(core: CompressiveTransformer, options: Options, cached: bool) -> Callable[[], int]:
    """A whole segment in calls of one step, which includes the turn of the segment."""
    inputs, reset = inputs_of(options)
    state = full_state(core.eval(), options)
    state = core.with_cache(state) if cached else state

    @torch.no_grad()
    def segment() -> int:
        nonlocal state
        for step in range(SEGMENT):
            state = core(inputs[:, step : step + 1], reset[:, step : step + 1], state).state
        return reset.numel()

    return segment


def acting_anew(core: CompressiveTransformer, options: Options, lengths: list[int]) -> Callable[[], int]:
    """Steps each of which computes that many steps of the segment."""
    inputs, reset = inputs_of(options)
    state = full_state(core.eval(), options)

    @torch.no_grad()
    def steps() -> int:
        for step in lengths:
            core(inputs[:, :step], reset[:, :step], state)
        return len(lengths) * options.batch

    return steps


def peer_acting_anew(peer: nn.Module, options: Options, lengths: list[int]) -> Callable[[], int]:
    """The same for the peer, which has no other way."""
    inputs, _ = inputs_of(options)
    memory = None
    peer.eval()
    with torch.no_grad():
        for _ in range(3):
            _, memory, _ = peer(inputs, memories=memory)

    @torch.no_grad()
    def steps() -> int:
        for step in lengths:
            peer(inputs[:, :step], memories=memory)
        return len(lengths) * options.batch

    return steps


def scaling(options: Options) -> dict[str, dict[int, int]]:
    """Learning over n_cm at c = 4, and over c at n_cm = 64: what more slots cost, and that c itself costs little."""
    slots = {n: learning(make(options, compressed_size=n), options) for n in (0, 64, 128, 256, 512)}
    rates = {c: learning(make(options, compression_rate=c), options) for c in (1, 2, 4, 8)}
    works = {f"n_cm {n}": work for n, work in slots.items()} | {f"c {c}": work for c, work in rates.items()}
    measured = in_turns(works, options)
    return {
        "by_compressed_size": {n: measured[f"n_cm {n}"] for n in slots},
        "by_compression_rate": {c: measured[f"c {c}"] for c in rates},
    }


def draw(curves: dict[str, dict[int, int]], path: Path) -> None:
    """Both curves of `scaling`, and how far back each size reaches, as an SVG."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    sizes, rates = curves["by_compressed_size"], curves["by_compression_rate"]
    left.plot(list(sizes), list(sizes.values()), "o-")
    left.set(xlabel="compressed slots n_cm (c = 4)", ylabel="tokens / CPU-second", title="more slots cost time")
    right.plot(list(rates), list(rates.values()), "o-")
    right.set(xlabel="compression rate c (n_cm = 64)", title="a higher rate does not", xticks=list(rates))
    for axes, points in ((left, sizes), (right, rates)):
        for x, y in points.items():
            reach = LAYERS * (MEMORY + (RATE * x if axes is left else COMPRESSED * x))
            axes.annotate(f"reach {reach}", (x, y), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=7)
        axes.grid(alpha=0.3)
        axes.margins(0.12)
    left.set_ylim(0, 1.15 * max(sizes.values()))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    cores = {name: make(options, **fields) for name, fields in LEARNING.items()}
    peers = {name: peer for name, gated in PEERS.items() if (peer := make_peer(options, gated)) is not None}
    works = {name: learning(core, options) for name, core in cores.items()}
    if options.compile:
        works |= {f"{name}_compiled": learning(make(options, **LEARNING[name]), options, True) for name in LEARNING}
    learned = in_turns(works | {name: peer_learning(peer, options) for name, peer in peers.items()}, options)

    core = make(options)
    with FlopCounterMode(display=False) as flops:
        tokens = learning(core, options)()
    flops_per_token = flops.get_total_flops() / tokens

    works = {"cached": acting(core, options, True), "uncached": acting(core, options, False)}
    works |= {name: acting_anew(core, options, lengths) for name, lengths in LENGTHS.items()}
    for peer_name, peer in peers.items():
        works |= {f"{peer_name}_{name}": peer_acting_anew(peer, options, lengths) for name, lengths in LENGTHS.items()}
    acted = in_turns(works, options)
    curves = scaling(options)
    if options.plot:
        draw(curves, options.plot)

    ratios = {f"acting_cached_over_{name}": round(acted["cached"] / acted[name], 1) for name in LENGTHS}
    if peers:
        ratios |= {
            "learning_post_residual_over_peer_residual": round(learned["post_residual"] / learned["peer_residual"], 2),
            "learning_pre_residual_over_peer_residual": round(learned["pre_residual"] / learned["peer_residual"], 2),
            "learning_pre_gru_over_peer_gru": round(learned["pre_gru"] / learned["peer_gru"], 2),
            **{
                f"acting_cached_over_peer_{name}": round(acted["cached"] / acted[f"peer_residual_{name}"], 1)
                for name in LENGTHS
            },
        }
    return {
        "benchmark": "core",
        "model": "d 256, 4 layers, 4 heads, mlp 1024, n_s 128, n_m 128, n_cm 64, c 4",
        "batch": options.batch,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else f"cpu, 1 thread of {os.cpu_count()}",
        "dtype": "bfloat16 autocast" if options.autocast else "float32",
        "torch": torch.__version__,
        "peer": "compressive-transformer-pytorch 0.4.0" if peers else "not installed: pip install -e .[bench]",
        "learning_tokens_per_second": learned,
        "acting_tokens_per_second": acted,
        "ratios": ratios,
        "learning_flops_per_token": round(flops_per_token),
        "model_flops_utilisation": options.peak_tflops
        and round(learned["post_residual"] * flops_per_token / options.peak_tflops / 1e12, 4),
        "state_bytes_per_row": {
            "stored": state_bytes(core.initial_state(1)),
            "with_cache": state_bytes(core.with_cache(core.initial_state(1))),
        },
        "scaling": curves,
    }


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options, description=__doc__)), sys.stdout, indent=2)
    print()
