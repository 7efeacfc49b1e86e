"""Held-out bits per byte of the small language model: cores at equal attention cost, or Table 5's compressions.

    python -m benchmarks.text                                        (`make text`: Python's source, two cores)
    python -m benchmarks.text --compare compressions --corpus pg19 --path FOLDER
    python -m benchmarks.text --compare compressions --corpus enwik8 --path FILE --steps 500 --seeds 0

A sweep as of `compressive compare --kind text`, in --out, with variants that are no grid. All see the same batches in
the same order. The split test is read once, 16 parts side by side, each with empty memory at its start. Beside them: xz
and bz2 on the same held-out bytes, alone, and as what these add to the compressed training text (bz2 looks back at most
900 kB, xz -9e 64 MiB).
"""

import bz2
import dataclasses
import lzma
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import markdown, require_least, require_some, run
from commands import main as compressive
from reports.comparison import read_run
from sequences.text.config import TextConfig, make_preset
from sequences.text.corpora import Corpus, load
from storage.run import absolute
from training import sweep

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
WARMUP = 100
"""Steps in which the preset's learning rate rises."""


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
    vocabulary: int = 2048
    """Subwords; not for bytes."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A run each."""
    steps: int | None = None
    """Steps of each run, if not those of the preset."""
    out: Path = Path("runs") / "text"
    """Folder of the sweeps, which get names of their own."""


def variants(options: Options) -> dict[str, TextConfig]:
    """The configuration of each variant, by name; slower ones first."""

    def make(core: str, **fields: Any) -> TextConfig:
        preset: Any = make_preset("cpu", core)
        learner = dataclasses.replace(preset.learner, device="cpu")
        if steps := options.steps:
            warmup = min(WARMUP, steps // 4)
            learner = dataclasses.replace(learner, steps=steps, warmup_steps=warmup)
        if fields.get("compression_loss") == "bptt":
            # Section 5.2: gradients reach compression over twice the segments; half the rows, so the same tokens.
            rows = learner.batch_size // 2
            length = 2 * learner.sequence_length
            learner = dataclasses.replace(learner, batch_size=rows, sequence_length=length)
        vocabulary = options.vocabulary if options.tokens == "subwords" else None
        core_config = dataclasses.replace(preset.model.core, **fields)
        config = dataclasses.replace(
            preset,
            corpus=options.corpus,
            path=options.path,
            tokens=options.tokens,
            vocabulary=vocabulary,
            log_every=50,
            checkpoint_seconds=1e9,
            keep_checkpoints=1,
            learner=learner,
            model=dataclasses.replace(preset.model, core=core_config),
        )
        return config.located(absolute)

    found = {}
    if options.compare == "compressions":
        for function, loss in TABLE_5:
            found[f"{function}, {loss}"] = make("compressive", compression=function, compression_loss=loss)
    else:
        found["compressive"] = make("compressive")
    found["transformer-xl"] = make("transformer-xl")
    return found


def compressors(corpus: Corpus) -> dict[str, float]:
    """Bits per byte of the test split by xz -9e and bz2 -9, alone and as what it adds to the training text."""
    learned = b"".join(document.read() for document in corpus["train"])
    held = b"".join(document.read() for document in corpus["test"])
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


def main(options: Options) -> dict[str, Any]:
    """Trains, measures, and returns the figures."""
    require_some("seeds", options.seeds)
    if options.steps is not None:
        require_least("steps", options.steps, 1)
    folder = options.out / time.strftime("%Y%m%d-%H%M%S")
    configs = variants(options)
    names: dict[str, str] = {}  # the variant of each trial
    trials: dict[str, TextConfig] = {}
    for seed in options.seeds:
        for name, config in configs.items():
            trial = f"{name.replace(', ', '-')}-seed-{seed}"
            names[trial] = name
            trials[trial] = dataclasses.replace(config, seed=seed)
    sweep.begin(folder, trials, f"python -m benchmarks.text {' '.join(sys.argv[1:])}")
    compressive(["compare", "--resume", str(folder)])
    models: dict[str, list[dict[str, float]]] = defaultdict(list)
    for trial, name in names.items():
        found = read_run(folder / trial)
        figures = {
            "bits_per_byte": found.summary["bits_per_byte"],
            "tokens_per_second": found.speed,
            "tokens": found.rows[-1]["learner/tokens"],
        }
        models[name].append(figures)

    path = Path(options.path) if options.path else None
    baselines = compressors(load(options.corpus, path))
    rows: list[tuple[Any, Any]] = [("compressor", "bits a byte")]
    for name, bits in baselines.items():
        rows.append((name, round(bits, 4)))
    print(f"\n{markdown(rows)}", file=sys.stderr)
    return {"compare": options.compare, "corpus": options.corpus, "compressors": baselines, "models": models}


if __name__ == "__main__":
    run(main, Options)
