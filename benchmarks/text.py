"""Held-out bits per byte of the small language model: cores at equal attention cost, or Table 5's compressions.

    python -m benchmarks.text                                        (`make text`: Python's source, two cores)
    python -m benchmarks.text --compare compressions --corpus pg19 --path FOLDER --log docs/log.md
    python -m benchmarks.text --compare compressions --corpus enwik8 --path FILE --steps 500 --seeds 0

All variants are runs of `compressive text train --preset cpu` and see the same batches in the same order. The split
test is read once, 16 parts side by side, each with empty memory at its start. Beside them: xz and bz2 on the same
held-out bytes, alone, and as what these add to the compressed training text (bz2 looks back at most 900 kB, xz -9e 64
MiB). Runs are kept in --out, for TensorBoard, `compressive text evaluate` and `sample`.
"""

import bz2
import lzma
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Literal

from benchmarks.common import markdown, run
from learner import checkpoints
from learner.files import read_json
from learner.metrics import read_metrics
from text.corpora import Corpus, load

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
BPTT = ["--learner.batch-size", "8", "--learner.sequence-length", "128"]
"""Section 5.2: gradients reach compression over twice the segments of the preset; half its rows, the same tokens."""
WARMUP = 100
"""Steps in which the preset's learning rate rises."""
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Options:
    compare: Literal["cores", "compressions"] = "cores"
    """Compressive beside Transformer-XL, or the rows of Table 5."""
    corpus: str = "python"
    """As `compressive text train` takes it."""
    path: str | None = None
    """Its file or folder."""
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


def variants(options: Options) -> dict[str, list[str]]:
    """The options of `compressive text train` for each variant, by name; slower ones first."""
    shared = f"--corpus {options.corpus} --tokens {options.tokens} --learner.device cpu --evaluate-every None".split()
    shared += ["--log-every", "50", "--checkpoint-seconds", "1e9", "--keep-checkpoints", "1"]
    shared += ["--path", options.path] if options.path else []
    shared += ["--vocabulary", str(options.vocabulary)] if options.tokens == "subwords" else []
    if steps := options.steps:
        warmup = min(WARMUP, steps // 4)
        shared += f"--learner.steps {steps} --learner.warmup-steps {warmup}".split()
        shared += ["--learner.decay-steps", str(steps - warmup)]
    compressive = ["--core", "compressive", *shared]
    compressive += ["--model.core.compression-rate", str(options.rate)] if options.rate else []
    words = {"compressive": compressive}
    if options.compare == "compressions":
        words = {
            f"{function}, {loss}": [
                *compressive,
                *f"--model.core.compression {function} --model.core.compression-loss {loss}".split(),
                *(BPTT if loss == "bptt" else []),
            ]
            for function, loss in TABLE_5
        }
    return words | {"transformer-xl": ["--core", "transformer-xl", *shared]}


def train(name: str, seed: int, words: list[str], folder: Path) -> dict[str, Any]:
    """Trains and measures one model in another process; its output is in `folder`.log."""
    command = [sys.executable, "-m", "commands", "text", "train", *words, f"--seed={seed}", f"--run={folder}"]
    begin = time.monotonic()
    with folder.with_suffix(".log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    rows, weights = read_metrics(folder), checkpoints.load_latest(folder).parts["weights"]
    return {
        "name": name,
        "seed": seed,
        "bits_per_byte": read_json(folder / "evaluation.json")["bits_per_byte"],
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "tokens": rows[-1]["learner/tokens"],
        "tokens_per_second": median(row["speed/tokens_per_second"] for row in rows),
        "seconds": time.monotonic() - begin,
    }


def compressors(corpus: Corpus) -> dict[str, float]:
    """Bits per byte of the test split by xz -9e and bz2 -9, alone and as what it adds to the training text."""
    learned, held = (b"".join(document.read() for document in corpus[split]) for split in ("train", "test"))
    programs: dict[str, Callable[[bytes], bytes]] = {
        "xz -9e": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
        "bz2 -9": lambda data: bz2.compress(data, 9),
    }
    found = {}
    for name, compress in programs.items():
        found[f"{name}, alone"] = 8 * len(compress(held)) / len(held)
        added = len(compress(learned + held)) - len(compress(learned))
        found[f"{name}, after the training text"] = 8 * added / len(held)
    return found


def table(results: dict[str, list[dict[str, Any]]], baselines: dict[str, float]) -> str:
    """Models and compressors as Markdown."""
    rows = [["model", "bits a byte", "by seed", "tokens/s"]]
    for name, runs in results.items():
        bits = [each["bits_per_byte"] for each in runs]
        spread = f" ± {stdev(bits):.4f}" if len(bits) > 1 else ""
        rate = mean(each["tokens_per_second"] for each in runs)
        rows.append([name, f"{mean(bits):.4f}{spread}", ", ".join(f"{each:.4f}" for each in bits), f"{rate:,.0f}"])
    return markdown([*rows, *([name, f"{bits:.4f}", "", ""] for name, bits in baselines.items())])


def main(options: Options) -> dict[str, Any]:
    """Trains, measures, and returns the figures."""
    words, folder = variants(options), options.out / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    begin = time.monotonic()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in words}
    print(f"{len(words) * len(options.seeds)} runs in {folder}", file=sys.stderr)
    with ThreadPoolExecutor(options.processes) as pool:
        jobs = [
            pool.submit(train, name, seed, words[name], folder / f"{name.replace(', ', '-')}-{seed}")
            for seed in options.seeds
            for name in words
        ]
        try:
            for job in as_completed(jobs):
                done = job.result()
                results[done["name"]].append(done)
                result = f"{done['bits_per_byte']:.4f} bits a byte of held-out text"
                print(f"{done['name']:<28} seed {done['seed']}  {result}, {done['seconds']:.0f} s", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for runs in results.values():
        runs.sort(key=lambda each: each["seed"])
    baselines = compressors(load(options.corpus, Path(options.path) if options.path else None))
    tokens = results["transformer-xl"][0]["tokens"]
    title = f"{options.corpus}: after {tokens:,.0f} tokens of training; {time.monotonic() - begin:.0f} s in all"
    text = f"\n{title}\n\n{table(results, baselines)}\n"
    print(text, file=sys.stderr)
    if options.log:
        with options.log.open("a") as file:
            file.write(text)
    return {"compare": options.compare, "corpus": options.corpus, "compressors": baselines, "models": results}


if __name__ == "__main__":
    run(main, Options)
