"""How far back one layer can recall a symbol, by compression, and with routing, at equal attention cost.

    python -m benchmarks.recall docs/recall                             (needs: pip install -e '.[plot]')
    python -m benchmarks.recall docs/recall --seeds 0 --processes 1 --variants "routing, k = 8" --farther 320 640

Streams of distractors in which 8 cues, each a tag with a symbol, appear once; up to 4 times a stream, 1 to 160 steps
later, a tag alone asks for its symbol. With one layer, recall beyond n_m + c n_cm is chance: layer inputs are
embeddings, so the steps between cannot pass anything on. Routed slots have no such reach. docs/log.md has the sizes and
the results.
"""

import functools
import importlib
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import CompressiveTransformerConfig, RoutingTransformerConfig, make_core
from benchmarks.common import markdown, picture, require_least, require_some, run
from training.config import require_one_of

TAGS = 8
SYMBOLS = 8
DISTRACTORS = 8
ASKS = 4
VOCABULARY = TAGS * SYMBOLS + TAGS + DISTRACTORS
"""Tokens: a cue is tag * SYMBOLS + symbol; then follow the tags that ask, and the distractors."""
CHANCE = 1 / SYMBOLS
STEPS = 192
LONGEST = 160
"""Steps of a stream, and the longest delay in it."""
DELAYS = torch.arange(8, LONGEST + 1, 8)
"""Delays at which recall is measured."""
TRANSFORMER_XL = "transformer-xl"


class Streams(NamedTuple):
    """tokens, delays and answers, each [B, T] int64; delays (and answers) are 0 where nothing is asked."""

    tokens: Tensor
    delays: Tensor
    answers: Tensor


def make_streams(delays: Tensor, generator: torch.Generator, longest: int = LONGEST) -> Streams:
    """Streams that ask for each tag's symbol at the given delays after its cue.

    Args:
        delays: [B, TAGS, ASKS] int64, from 1 to `longest`. Cues and questions for a step that is taken are left out.
        generator: draws symbols, distractors and the times of cues.
        longest: the longest delay; streams are STEPS - LONGEST steps longer.
    """
    rows = torch.arange(delays.shape[0])
    steps = STEPS - LONGEST + longest
    tokens = torch.randint(VOCABULARY - DISTRACTORS, VOCABULARY, (len(rows), steps), generator=generator)
    asked = torch.zeros_like(tokens)
    answers = torch.zeros_like(tokens)
    is_free = torch.ones_like(tokens, dtype=torch.bool)
    for tag in range(TAGS):
        # A cue, so early that the longest of its delays ends within the stream.
        symbol = torch.randint(SYMBOLS, rows.shape, generator=generator)
        room = steps - delays[:, tag].amax(dim=1)
        cue = (torch.rand(rows.shape, generator=generator) * room).long()
        shown = rows[is_free[rows, cue]]
        step = cue[shown]
        is_free[shown, step] = False
        tokens[shown, step] = tag * SYMBOLS + symbol[shown]

        # The questions, in the rows that have the cue.
        for delay in delays[:, tag].unbind(dim=1):
            question = cue + delay
            row = shown[is_free[shown, question[shown]]]
            step = question[row]
            is_free[row, step] = False
            tokens[row, step] = TAGS * SYMBOLS + tag
            asked[row, step] = delay[row]
            answers[row, step] = symbol[row]
    return Streams(tokens, asked, answers)


def training_streams(rows: int, generator: torch.Generator) -> Streams:
    """Streams of all delays, log-uniform: reading a memory must be learned before keeping it can be."""
    share = torch.rand(rows, TAGS, ASKS, generator=generator)
    delays = ((LONGEST + 1) ** share).long().clamp(max=LONGEST)
    return make_streams(delays, generator)


def measured_streams(rows: int, generator: torch.Generator, delays: Tensor = DELAYS) -> Streams:
    """Streams of the delays at which recall is measured, uniformly."""
    drawn = delays[torch.randint(len(delays), (rows, TAGS, ASKS), generator=generator)]
    return make_streams(drawn, generator, int(delays.max()))


LAYER: dict[str, Any] = {"model_size": 64, "num_layers": 1, "num_heads": 4, "mlp_size": 128, "segment_size": 16}
Config = CompressiveTransformerConfig | RoutingTransformerConfig


def core_config(compression: str = TRANSFORMER_XL, rate: int = 1, slots: int = 32) -> CompressiveTransformerConfig:
    """One layer with 16 steps a segment and 32 slots besides it; in Transformer-XL they are memory, and any number."""
    sizes: dict[str, Any] = {"memory_size": slots, "compressed_size": 0}
    if compression != TRANSFORMER_XL:
        sizes = {"memory_size": 16, "compressed_size": 16, "compression_rate": rate, "compression": compression}
    return CompressiveTransformerConfig(**LAYER, **sizes)


def routing_config(clusters: int, window: int = 16) -> RoutingTransformerConfig:
    """The same layer with 32 - w slots of memory and, of k x w routed slots, the w of one cluster for each step."""
    return RoutingTransformerConfig(**LAYER, memory_size=32 - window, window=window, clusters=clusters)


XL: dict[str, Config] = {TRANSFORMER_XL: core_config()}
RATES = XL | {f"convolution, c = {rate}": core_config("convolution", rate) for rate in (1, 2, 4, 8)}
COMPRESSIONS = XL | {
    f"{name}, c = 4": core_config(name, 4) for name in ("convolution", "dilated", "mean", "max", "most-used")
}
ROUTINGS = XL | {f"routing, k = {k}": routing_config(k) for k in (8, 16)} | {"routing, w = 8": routing_config(8, 8)}
FIGURES = {"rates": RATES, "compressions": COMPRESSIONS, "routings": ROUTINGS}
VARIANTS: dict[str, Config] = RATES | COMPRESSIONS | ROUTINGS | {"transformer-xl, 144 slots": core_config(slots=144)}
"""All that is compared, by name. The last attends to all of as many slots as routing with k = 8 stores."""


def reach(config: Config) -> int | None:
    """Steps that every query sees, n_m + c n_cm; one at step p of its segment (0 to n_s - 1) sees p more.

    None with routed slots, which do not age.
    """
    (sizes,) = config.layer_sizes
    return sizes.reach


class Recaller(nn.Module):
    """Embedding, core and a linear readout."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.model_size)
        self.core = make_core(config)
        self.read_out = nn.Linear(config.model_size, SYMBOLS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the symbols [B, T, SYMBOLS] at each step of new streams [B, T], and the core's loss."""
        reset = torch.zeros_like(tokens, dtype=torch.bool)
        state = self.core.initial_state(len(tokens))
        output = self.core(self.embedding(tokens), reset, state)
        core_loss = torch.zeros(())
        for loss in output.losses.values():
            core_loss = core_loss + loss.value
        return self.read_out(output.features), core_loss


def train(
    config: Config, seed: int, updates: int, rows: int = 16, learning_rate: float = 4e-3
) -> tuple[Recaller, list[float]]:
    """Trains on `rows` new streams an update; returns the network and the task's loss (nats an answer) by update."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = Recaller(config)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    losses = []
    for _ in range(updates):
        tokens, delays, answers = training_streams(rows, generator)
        logits, compression = network(tokens)
        is_asked = delays > 0
        loss = F.cross_entropy(logits[is_asked], answers[is_asked])
        optimizer.zero_grad()
        (loss + compression).backward()
        optimizer.step()
        losses.append(loss.item())
    return network, losses


@torch.no_grad()
def recall(network: Recaller, seed: int, rows: int = 64, batches: int = 8, delays: Tensor = DELAYS) -> dict[int, float]:
    """Fraction of right answers by delay, about 600 answers a delay with the defaults, none of them trained on."""
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    network.eval()
    size = int(delays.max()) + 1
    right = torch.zeros(size)
    asked = torch.zeros(size)
    for _ in range(batches):
        tokens, after, answers = measured_streams(rows, generator, delays)
        logits, _ = network(tokens)
        hits = (logits.argmax(dim=-1) == answers).float()
        asked += after.flatten().bincount(minlength=size)
        right += after.flatten().bincount(weights=hits.flatten(), minlength=size)
    return {delay: round(float(right[delay] / asked[delay]), 4) for delay in delays.tolist()}


def measure(job: tuple[str, int], options: "Options") -> dict[int, float]:
    """Recall by delay of one variant with one seed, on one thread."""
    torch.set_num_threads(1)
    name, seed = job
    network, _ = train(VARIANTS[name], seed, options.updates)
    found = recall(network, seed)
    if options.farther:
        far = recall(network, seed, delays=torch.tensor([*DELAYS.tolist(), *options.farther]))
        found |= {delay: far[delay] for delay in options.farther}
    print(f"{name}, seed {seed}: {min(found.values()):.0%} to {max(found.values()):.0%}", file=sys.stderr, flush=True)
    return found


def table(results: dict[str, list[dict[int, float]]]) -> str:
    """Recall in percent, mean over the seeds, as Markdown."""
    delays = [delay for delay in next(iter(results.values()))[0] if delay % 16 == 0]
    rows: list[list[Any]] = [["delay", "reach", *delays]]
    for name, runs in results.items():
        row: list[Any] = [name, reach(VARIANTS[name]) or "-"]
        for delay in delays:
            mean = sum(run[delay] for run in runs) / len(runs)
            row.append(round(100 * mean))
        rows.append(row)
    return markdown(rows)


def draw(path: Path, results: dict[str, list[dict[int, float]]]) -> None:
    """Recall against delay: the mean over the seeds and their range; dotted lines mark the reach."""
    delays = DELAYS.tolist()
    note = {"fontsize": 8, "color": "0.4"}
    reaches = set[int]()
    for name in results:
        steps = reach(VARIANTS[name])
        if steps is not None:
            reaches.add(steps)

    with picture(path, size=(6.4, 3.6)) as axes:
        for index, (name, runs) in enumerate(results.items()):
            percents = []
            for run_of_seed in runs:
                percents.append([100 * run_of_seed[delay] for delay in delays])
            values = torch.tensor(percents)  # [seeds, delays]
            if name == TRANSFORMER_XL:
                color = "black"
                line = "--"
            else:
                color = f"C{index - 1}"
                line = "-"
            in_front = 3 if index == 0 else 2
            style = {"color": color, "linestyle": line, "zorder": in_front, "linewidth": 1.4, "marker": "."}
            axes.plot(delays, values.mean(dim=0), label=name, **style)
            axes.fill_between(delays, values.amin(dim=0), values.amax(dim=0), color=color, alpha=0.15, linewidth=0)
        for steps in sorted(reaches):
            axes.axvline(steps, color="0.6", linewidth=0.8, linestyle=":")
            axes.annotate(str(steps), (steps, 103), ha="center", va="bottom", **note)
        axes.axhline(100 * CHANCE, color="0.6", linewidth=0.8)
        axes.annotate("chance", (delays[0], 100 * CHANCE), ha="left", va="top", **note)
        axes.set(xlabel="delay (steps); dotted: reach n_m + c n_cm", ylabel="recall (%)", ylim=(0, 103))
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        axes.legend(title="32 slots each", title_fontsize=8, frameon=False, fontsize=8, **place)


@dataclass
class Options:
    picture: tyro.conf.Positional[str]
    """First part of the figures' paths: <picture>-rates.svg, <picture>-compressions.svg and <picture>-routings.svg."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """What is compared; a figure is drawn if all of its variants are."""
    seeds: tuple[int, ...] = (0, 1)
    """A run for each variant and seed."""
    updates: int = 300
    """Gradient steps of a run."""
    farther: tuple[int, ...] = ()
    """More delays, such as 320 and 640: the same networks on longer streams of all these delays."""
    processes: int = 2
    """Runs at a time, one thread each."""


def main(options: Options) -> dict[str, Any]:
    """Trains every variant with every seed, writes the figures and returns the numbers."""
    require_some("variants", options.variants)
    require_some("seeds", options.seeds)
    require_least("updates", options.updates, 1)
    require_least("processes", options.processes, 1)
    for name in options.variants:
        require_one_of("--variants", name, VARIANTS)
    for delay in options.farther:
        require_least("farther", delay, 1)
    importlib.import_module("matplotlib")  # fails before the work if it is missing
    begin = time.monotonic()
    jobs = []
    for seed in options.seeds:
        for name in options.variants:
            jobs.append((name, seed))
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(functools.partial(measure, options=options), jobs)
        by_job = dict(zip(jobs, found, strict=True))
    results = {}
    for name in options.variants:
        results[name] = [by_job[name, seed] for seed in options.seeds]
    for figure, names in FIGURES.items():
        if names.keys() <= results.keys():
            draw(Path(f"{options.picture}-{figure}.svg"), {name: results[name] for name in names})
    print(table(results), file=sys.stderr)

    # By variant and delay, the recall of each seed.
    recalls: dict[str, dict[int, list[float]]] = {}
    for name, runs in results.items():
        recalls[name] = {}
        for delay in runs[0]:
            recalls[name][delay] = [run_of_seed[delay] for run_of_seed in runs]
    return {
        "chance": CHANCE,
        "seeds": options.seeds,
        "reach": {name: reach(config) for name, config in VARIANTS.items() if name in results},
        "recall": recalls,
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


if __name__ == "__main__":
    run(main, Options)
