"""Held-out bits per byte of the small language model: cores at equal attention cost, or Table 5's compressions.

    python benchmarks/text.py                                        (`make text`: Python's source, two cores)
    python benchmarks/text.py --compare compressions --corpus pg19 --path FOLDER --log docs/log.md
    python benchmarks/text.py --compare compressions --corpus enwik8 --path FILE --steps 500 --seeds 0

All variants are `compressive text train --preset cpu` and see the same batches in the same order. The split test is
read once, 16 parts side by side, each with empty memory at its beginning. Beside them: what xz and bz2 make of the same
held-out bytes, alone, and as what they add to the training text (bz2 looks back 900 kB at most, xz -9e 64 MiB).

Runs lie in --out, for TensorBoard, `compressive text evaluate` and `sample`. Prints progress and a table to stderr and
one JSON object to stdout.
"""

import bz2
import dataclasses
import json
import lzma
import multiprocessing
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from text.config import TextConfig, make_preset
from text.corpora import Corpus, load
from text.modality import Text
from training.loop import Progress
from training.run import Run
from training.sequence import SequenceTrainer, train_run

TABLE_5 = (
    ("convolution", "bptt"),
    ("max", "none"),
    ("convolution", "autoencoding"),
    ("mean", "none"),
    ("most-used", "none"),
    ("dilated", "attention"),
    ("convolution", "attention"),
)
"""Compression functions and losses in the paper's order, the worst first."""


@dataclass(frozen=True)
class Options:
    """Trains small language models of several kinds and compares them on held-out text."""

    compare: Literal["cores", "compressions"] = "cores"
    """Compressive beside Transformer-XL, or the rows of Table 5."""
    corpus: str = "python"
    """As `compressive text train` takes it."""
    path: str | None = None
    """Where it is."""
    tokens: Literal["bytes", "subwords"] = "subwords"
    """What a token is; results are bits a byte, which words do not have. With subwords (package `tokenizers`) a model
    sees three times the text in the same time."""
    vocabulary: int | None = 2048
    """Subwords; not for bytes."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A run each."""
    steps: int | None = None
    """Steps of each run, if not those of the preset."""
    rate: int | None = None
    """Compression rate, if not the preset's."""
    processes: int = 2
    """Runs at a time, one thread each."""
    out: Path = Path("runs") / "text"
    """Folder of the runs, which get names of their own."""
    log: Path | None = None
    """Append the table to this Markdown file."""


def variants(options: Options) -> dict[str, TextConfig]:
    """What is compared, by name."""
    base = {name: _shared(make_preset("cpu", name), options) for name in ("compressive", "transformer-xl")}
    core: Any = base["compressive"].model.core
    if options.rate:
        core = dataclasses.replace(core, compression_rate=options.rate)
    if options.compare == "cores":
        # The slower first: then no process waits long for another at the end.
        return {"compressive": _with_core(base["compressive"], core), "transformer-xl": base["transformer-xl"]}
    compressed = {}
    for function, loss in TABLE_5:
        changed = dataclasses.replace(core, compression=function, compression_loss=loss)
        config = _with_core(base["compressive"], changed)
        if loss == "bptt":
            # As in section 5.2: gradients reach compression over twice the segments; half the rows, the same tokens.
            learner = dataclasses.replace(
                config.learner,
                batch_size=config.learner.batch_size // 2,
                sequence_length=config.learner.sequence_length * 2,
            )
            config = dataclasses.replace(config, learner=learner)
        compressed[f"{function}, {loss}"] = config
    return {"transformer-xl": base["transformer-xl"], **compressed}


def _shared(config: TextConfig, options: Options) -> TextConfig:
    learner = config.learner
    if options.steps:
        warmup = min(learner.warmup_steps, options.steps // 4)
        learner = dataclasses.replace(
            learner, steps=options.steps, warmup_steps=warmup, decay_steps=options.steps - warmup
        )
    return dataclasses.replace(
        config,
        corpus=options.corpus,
        path=None if options.path is None else str(Path(options.path).expanduser().resolve()),
        tokens=options.tokens,
        vocabulary=None if options.tokens == "bytes" else options.vocabulary,
        evaluate_every=None,
        log_every=50,
        checkpoint_seconds=1e9,
        keep_checkpoints=1,
        learner=dataclasses.replace(learner, device="cpu"),
    )


def _with_core(config: TextConfig, core: Any) -> TextConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, core=core))


def end_with_parent() -> None:
    """Ends this process when the one that started it ends, however it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run(name: str, config: TextConfig, folder: Path) -> dict[str, Any]:
    """Trains and measures one model in this process."""
    torch.set_num_threads(1)
    shown, started = [time.monotonic()], [0.0, 0.0]
    trainers: list[SequenceTrainer] = []

    def start(trainer: SequenceTrainer) -> None:
        trainers.append(trainer)
        started[:] = time.monotonic(), time.process_time()

    def show(progress: Progress) -> None:
        ended[:] = time.monotonic(), time.process_time()
        if time.monotonic() - shown[0] > 30:
            shown[0] = time.monotonic()
            share = f"{100 * progress.done / progress.total:3.0f} %"
            print(f"{name:<28} seed {config.seed}  {share}  {progress.texts[1]}", file=sys.stderr, flush=True)

    ended = [0.0, 0.0]
    found = train_run(config, Run(folder), new=True, start=start, show=show)
    assert found is not None
    learner = trainers[0].learner
    seconds, used = (after - before for after, before in zip(ended, started))
    return {
        "name": name,
        "seed": config.seed,
        "bits_per_byte": found["bits_per_byte"],
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "tokens": learner.tokens,
        "tokens_per_second": learner.tokens / seconds,
        "tokens_per_cpu_second": learner.tokens / used,
        "seconds": seconds,
    }


def compressors(corpus: Corpus) -> dict[str, float]:
    """Bits per byte of the test split by xz -9e and bz2 -9, alone and as what it adds to the training text."""
    learned, held = (b"".join(document.read() for document in corpus[split]) for split in ("train", "test"))
    found = {}
    for name, compress in (
        ("xz -9e", lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
        ("bz2 -9", lambda data: bz2.compress(data, 9)),
    ):
        found[f"{name}, alone"] = 8 * len(compress(held)) / len(held)
        found[f"{name}, after the training text"] = (
            8 * (len(compress(learned + held)) - len(compress(learned))) / len(held)
        )
    return found


def table(results: dict[str, list[dict[str, Any]]], found: dict[str, float], title: str) -> str:
    """Markdown."""
    lines = [title, "", "| model | bits a byte | by seed | tokens/s |", "|---|---|---|---|"]
    for name, runs in results.items():
        bits = [each["bits_per_byte"] for each in runs]
        spread = f" ± {statistics.stdev(bits):.4f}" if len(bits) > 1 else ""
        rate = statistics.mean(each["tokens_per_second"] for each in runs)
        seeds = ", ".join(f"{each:.4f}" for each in bits)
        lines.append(f"| {name} | {statistics.mean(bits):.4f}{spread} | {seeds} | {rate:,.0f} |")
    lines += [f"| {name} | {bits:.4f} | | |" for name, bits in found.items()]
    return "\n".join(lines)


def main(options: Options) -> None:
    """Runs the comparison."""
    configs = variants(options)
    print(f"preparing {options.corpus}", file=sys.stderr)
    first = next(iter(configs.values()))
    data = Text.prepare(first)
    begin, stamp = time.monotonic(), time.strftime("%Y%m%d-%H%M%S")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn, initializer=end_with_parent) as pool:
        jobs = [
            pool.submit(
                run,
                name,
                dataclasses.replace(config, seed=seed),
                options.out / stamp / f"{name.replace(', ', '-')}-{seed}",
            )
            for seed in options.seeds
            for name, config in configs.items()
        ]
        baselines = pool.submit(compressors, load(first.corpus, None if first.path is None else Path(first.path)))
        for job in as_completed(jobs):
            found = job.result()
            results[found["name"]].append(found)
            print(
                f"{found['name']:<28} seed {found['seed']}  {found['bits_per_byte']:.4f} bits a byte of held-out text, "
                f"{found['tokens_per_second']:,.0f} tokens/s, {found['seconds']:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        bits = baselines.result()
    for runs in results.values():
        runs.sort(key=lambda each: each["seed"])
    learner = configs["transformer-xl"].learner
    test = data.splits["test"]
    title = (
        f"{options.corpus}: {test.bytes:,} held-out bytes after {learner.steps} steps of "
        f"{learner.batch_size * learner.sequence_length} tokens; {time.monotonic() - begin:.0f} s in all"
    )
    text = table(results, bits, title)
    print(f"\n{text}", file=sys.stderr)
    if options.log:
        with options.log.open("a") as file:
            file.write(f"\n{text}\n")
    summary = {"corpus": options.corpus, "digest": data.digest, "compressors": bits, "models": results}
    print(json.dumps({"benchmark": "text", "compare": options.compare, **summary}))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
