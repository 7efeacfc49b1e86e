"""`compressive text`: trains language models on the shared core, measures them and draws text from them."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from agent.core import CORES
from agent.sequence import SequenceModel
from commands import UserError
from commands.config import build
from commands.display import quantity, table
from commands.options import parse
from commands.sequence import run_training, user_errors
from commands.text_presets import TextConfig, make_preset
from learner import checkpoints
from learner.data_parallel import DataParallel
from learner.learner import resolve_device
from learner.sequence import SequenceLearner, evaluate
from learner.streams import Streams, one_pass
from text import corpora, evaluation, sampling, tokenisation
from text.corpora import Split, Tokens
from text.model import make_model
from text.tokenisation import Tokeniser, Words

USAGE = """usage: compressive text COMMAND [OPTIONS]

Language modelling with the agents' recurrent core: Enwik8, WikiText-103, PG-19, any folder, or Python's own source.

  train      train a model, then measure it on held-out text
  evaluate   measure a trained model: bits per byte, perplexity, and the paper's analyses
  sample     continue a prompt

`compressive text COMMAND --help` explains a command's options. To begin:

  compressive text train                     Python's source, bytes, on a CPU, a few minutes
  compressive text evaluate runs/NAME
  compressive text sample runs/NAME --prompt 'def main('
"""
FIXED = ("preset", "corpus", "path", "tokens", "vocabulary", "reset_documents", "seed", "model", "learner.batch_size")
"""What a resumed run cannot change."""
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True)
class Start:
    """What decides the defaults of all other options."""

    preset: str = "cpu"
    core: str = "compressive"
    resume: Path | None = None


@dataclass(frozen=True)
class TrainOptions(TextConfig):
    """Trains a language model, then measures it on the test split.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive text train                                     Python's source, bytes, two CPU cores
      compressive text train --core transformer-xl               the baseline at equal attention cost
      compressive text train --corpus folder --path ~/books      any folder of text files
      compressive text train --preset enwik8 --path enwik8       the paper's models: enwik8, wikitext103, pg19
      compressive text train --model.core.compression mean --model.core.compression-loss none
      compressive text train --resume runs/NAME                  go on where a run stopped
    """

    core: str = "compressive"
    """Core: compressive, transformer-xl, local (attention within the segment alone), or any other of `agent.core`."""
    run: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the run, new or empty; if not given, runs/text-DATE-TIME-CORE."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Go on with the run in this folder, from its last readable checkpoint; most values may be changed."""
    threads: int = 1
    """CPU threads of a learner."""

    @property
    def config(self) -> TextConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        return TextConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(TextConfig)})


@dataclass(frozen=True)
class EvaluateOptions:
    """Measures a trained model on held-out text, as a stream with memory that goes on."""

    run: Folder
    """Folder of the run; its last readable checkpoint is taken."""
    split: Literal["train", "valid", "test"] = "test"
    """Which text."""
    rows: int = 1
    """Parts that are read side by side: faster, but each begins with empty memory."""
    sizes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MEMORY:COMPRESSED")] = ()
    """Also with other numbers of slots (Tables 8 and 9), such as 768:1024 768:3072; :3072 keeps the memory."""
    frequency: bool = False
    """By how often the training text has a token (Table 7; for words)."""
    position: bool = False
    """By how much context a token has."""
    attention: bool = False
    """Attention by eighteen buckets of memory (Figure 2)."""
    compression: bool = False
    """The compression's loss by layer (Figure 6)."""
    dynamic: float | None = None
    """Dynamic evaluation: go on training on the text, each part after it was scored, with this learning rate."""
    path: str | None = None
    """Where the corpus is, if not where it was."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: int = 1
    """CPU threads."""

    def __post_init__(self) -> None:
        _require_positive(self, "rows", "threads")
        if self.dynamic is not None and not self.dynamic > 0:
            raise ValueError(f"dynamic: expected a positive learning rate, got {self.dynamic}")


@dataclass(frozen=True)
class SampleOptions:
    """Continues a prompt; text appears as it is drawn."""

    run: Folder
    """Folder of the run; its last readable checkpoint is taken."""
    prompt: str | None = None
    """What to continue; - for standard input, which may be far longer than the memory. If not given, a new document."""
    length: int = 500
    """Tokens to draw."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_p: float = 0.98
    """Nucleus: the most probable tokens that have this probability together; 1 for all."""
    seed: int = 0
    """Seed of the draws."""
    device: str = "auto"
    """Where to compute."""
    threads: int = 1
    """CPU threads."""

    def __post_init__(self) -> None:
        _require_positive(self, "length", "threads")


def _require_positive(options: Any, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"{name}: expected 1 or more, got {getattr(options, name)}")


def text(arguments: Sequence[str]) -> None:
    """Runs the command."""
    commands: dict[str, Callable[[list[str]], None]] = {"train": _train, "evaluate": _evaluate, "sample": _sample}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] not in commands:
        expected = ", ".join(commands)
        raise UserError(f"text: expected one of {expected}, got {arguments[0]!r} (see compressive text --help)")
    commands[arguments[0]](list(arguments[1:]))


def to_plain(config: TextConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it; the core's name stands beside its fields."""
    plain = dataclasses.asdict(config)
    plain["model"]["core"] = {"name": core_name(config), **plain["model"]["core"]}
    return {"kind": "text", **plain}


def core_name(config: TextConfig) -> str:
    """The core's name in `agent.core.CORES`."""
    return next(name for name, (kind, _) in CORES.items() if type(config.model.core) is kind)


def read_run(run: Path) -> TextConfig:
    """The configuration of a run's folder.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if it is no run of this command, or its `config.json` cannot be read.
    """
    path = run / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{run} is not a run: expected a folder with config.json, made by compressive text train"
        )
    try:
        plain = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got: {error}") from error
    if not isinstance(plain, dict) or plain.pop("kind", None) != "text":
        raise ValueError(f"{path}: expected a run of compressive text train, got another kind")
    try:
        return build(TextConfig, plain, "config")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True)
class TextJob:
    """A training of a language model; see `commands.sequence.Job`."""

    config: TextConfig
    run: Path
    tokens: Path
    """Folder of the token files."""

    @property
    def learners(self) -> int:
        """How many processes learn."""
        return self.config.learners

    def plain(self) -> dict[str, Any]:
        """The configuration."""
        return to_plain(self.config)

    def make_learner(self, parallel: DataParallel, device: str | None) -> SequenceLearner:
        """A learner of this process's rows of the split train, with weights that depend on the seed alone."""
        config, tokens = self.config, corpora.open_tokens(self.tokens)
        train = tokens.splits["train"]
        torch.manual_seed(config.seed)
        model = make_model(config.model, tokens.tokeniser.vocabulary)
        learning = config.learner
        try:
            source = Streams(
                train.tokens,
                learning.batch_size,
                learning.sequence_length,
                train.starts if config.reset_documents else None,
                (parallel.rank, parallel.size),
            )
        except ValueError as error:
            raise ValueError(f"{config.corpus}, split train: {error}") from error
        if device:
            learning = dataclasses.replace(learning, device=device)
        return SequenceLearner(model, source, learning, parallel)

    def evaluate(self, model: SequenceModel) -> dict[str, float]:
        """On the split valid, or as much of it as the configuration says."""
        tokens = corpora.open_tokens(self.tokens)
        split = cut(tokens.splits["valid"], self.config.evaluate_tokens)
        total = evaluate(model, passes(self.config, split, self.config.evaluate_rows), self.config.learner.precision)
        found = evaluation.summary(total, split, tokens.tokeniser)
        return {"valid/nll": found.pop("nats_per_token"), **{f"valid/{name}": value for name, value in found.items()}}

    def loop(self) -> dict[str, Any]:
        """See `learner.sequence.train`."""
        config = self.config
        return {
            "log_every": config.log_every,
            "checkpoint_seconds": config.checkpoint_seconds,
            "keep": config.keep_checkpoints,
            "evaluate_every": config.evaluate_every,
        }


def cut(split: Split, tokens: int | None) -> Split:
    """The first tokens of a split; its bytes and words are then shares, so ratios to them are estimates."""
    if tokens is None or tokens >= len(split.tokens):
        return split
    share = tokens / len(split.tokens)
    starts = split.starts[split.starts < tokens]
    return Split(split.tokens[:tokens], starts, len(starts), round(split.bytes * share), round(split.words * share))


def passes(config: TextConfig, split: Split, rows: int) -> Any:
    """One pass over a split, in batches of the length that the model was trained with."""
    starts = split.starts if config.reset_documents else None
    return one_pass(split.tokens, rows, config.learner.sequence_length, starts)


def _parse_train(arguments: list[str]) -> TrainOptions:
    prog = "compressive text train"
    known = [argument for argument in arguments if argument not in ("-h", "--help")]
    start, _ = parse(Start, prog, args=known, return_unknown_args=True)
    with user_errors():
        config = read_run(start.resume) if start.resume else make_preset(start.preset, start.core)
    options = parse(
        TrainOptions,
        prog,
        args=arguments,
        default=TrainOptions(**vars(config), core=core_name(config) if start.resume else start.core),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    _require_positive(options, "threads")
    if options.run and options.resume:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.resume:
        old, new = _flat(to_plain(config)), _flat(to_plain(options.config))
        for name in old:
            if old[name] != new.get(name) and name.startswith(FIXED):
                raise UserError(f"{name}: expected {old[name]} as in {options.resume}, got {new.get(name)}")
    return options


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _train(arguments: list[str]) -> None:
    options, console = _parse_train(arguments), Console()
    config = options.config
    torch.set_num_threads(options.threads)
    run = options.resume or options.run or Path("runs") / f"text-{time.strftime('%Y%m%d-%H%M%S')}-{options.core}"
    with console.status(f"preparing {config.corpus} (once, then cached)"), user_errors():
        folder, tokens = prepare(config)
    again = f"compressive text train --resume {run}"
    if options.resume:
        _require_same_tokens(options.resume, tokens)

    def start(learner: SequenceLearner, checkpoint: checkpoints.Checkpoint | None) -> None:
        checkpoints.write_json(run / "tokeniser.json", {"digest": tokens.digest, **tokens.tokeniser.to_plain()})
        _describe(config, run, tokens, learner, again, console)
        if checkpoint:
            console.print(f"resumed from {checkpoint.path} at step {learner.step}", highlight=False, soft_wrap=True)

    def finish(model: SequenceModel) -> None:
        with console.status("measuring on the split test"):
            found = measure(config, model, tokens, "test", config.evaluate_rows)
        checkpoints.write_json(run / "evaluation.json", found)
        rows = _rows(found) | {"curves": f"tensorboard --logdir {run}", "again": f"compressive text evaluate {run}"}
        console.print(table("finished", rows | {"sample": f"compressive text sample {run}"}))

    job = TextJob(config, run, folder)
    run_training(job, console, not options.resume, _describer(tokens.tokeniser), again, start, finish)


def prepare(config: TextConfig) -> tuple[Path, Tokens]:
    """The token files of a configuration's corpus, and the folder where they are.

    Raises:
        FileNotFoundError, ValueError, ImportError, OSError: what is wrong with the corpus, or the cache.
    """
    path = None if config.path is None else Path(config.path).expanduser()
    corpus = corpora.load(config.corpus, path)
    return corpora.prepare(config.corpus, corpus, config.tokens, config.vocabulary)


def _require_same_tokens(run: Path, tokens: Tokens) -> None:
    expected = json.loads((run / "tokeniser.json").read_text())["digest"]
    if tokens.digest != expected:
        raise UserError(
            f"the corpus is not the one that {run} was trained on (its hash is {tokens.digest[:12]}, expected "
            f"{expected[:12]}): give the same --path, and for --corpus python the same Python"
        )


def _describer(tokeniser: Tokeniser) -> Callable[[float], str]:
    """Nats a token in the usual unit: bits for bytes, else perplexity."""
    if tokeniser.vocabulary == 256:
        return lambda nll: f"{evaluation.bits_per_character(nll, 1):.3f} bpc"
    return lambda nll: f"{evaluation.perplexity(nll, 1):.1f} ppl"


def _describe(
    config: TextConfig, run: Path, tokens: Tokens, learner: SequenceLearner, again: str, console: Console
) -> None:
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    sizes = ", ".join(f"{name} {quantity(split.bytes)}" for name, split in tokens.splits.items())
    learning = f"{config.learners} learners on Ray" if config.learners > 1 else f"learning on {learner.device}"
    lines = {
        "run": str(run),
        "corpus": f"{config.corpus}: bytes of {sizes}; {tokens.tokeniser.vocabulary} {config.tokens}",
        "model": f"{core_name(config)} core, {quantity(parameters)} parameters, {learning}",
        "batch": f"{config.learner.batch_size} rows of {config.learner.sequence_length} tokens",
        "curves": f"tensorboard --logdir {run.parent}",
        "stop": f"Ctrl-C, then go on with: {again}",
    }
    for name, value in lines.items():
        console.print(f"[bold]{name:<8}[/]  {value}", highlight=False, soft_wrap=True)


def measure(config: TextConfig, model: SequenceModel, tokens: Tokens, name: str, rows: int) -> dict[str, Any]:
    """The loss on a whole split, ready for JSON."""
    split = tokens.splits[name]
    begin = time.monotonic()
    total = evaluate(model, passes(config, split, rows), config.learner.precision)
    found: dict[str, Any] = {"split": name, **evaluation.summary(total, split, tokens.tokeniser)}
    sizes = {"tokens": total.count, "bytes": split.bytes, "words": split.words, "nll": total.nll}
    return found | sizes | {"tokens_per_second": total.count / max(time.monotonic() - begin, 1e-9)}


def _rows(found: dict[str, Any]) -> dict[str, str]:
    return {
        "split": f"{found['split']}, {quantity(found['tokens'])} tokens of {quantity(found['bytes'])} bytes",
        "bits a byte": f"{found['bits_per_byte']:.4f}",
        "perplexity a word": f"{found['word_perplexity']:.2f}",
        "nats a token": f"{found['nats_per_token']:.4f}",
        "tokens a second": quantity(found["tokens_per_second"]),
    }


def _open_run(run: Path, device: str) -> tuple[TextConfig, Tokeniser, SequenceModel, checkpoints.Checkpoint]:
    """A trained model, in evaluation mode on a device."""
    with user_errors():
        config = read_run(run)
        described = json.loads((run / "tokeniser.json").read_text())
        tokeniser = tokenisation.from_plain(described)
        checkpoint = checkpoints.load_latest(run)
        model = make_model(config.model, tokeniser.vocabulary)
        try:
            model.load_state_dict(checkpoint.parts["weights"])
        except (RuntimeError, KeyError) as error:
            raise ValueError(f"{checkpoint.path} does not fit {run / 'config.json'}: {error}") from error
        return config, tokeniser, model.to(resolve_device(device)).eval(), checkpoint


def _evaluate(arguments: list[str]) -> None:
    prog = "compressive text evaluate"
    options = parse(EvaluateOptions, prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    torch.set_num_threads(options.threads)
    console = Console()
    sizes = [_sizes(words) for words in options.sizes]
    config, tokeniser, model, checkpoint = _open_run(options.run, options.device)
    if options.path:
        config = dataclasses.replace(config, path=options.path)
    with console.status(f"preparing {config.corpus}"), user_errors():
        _, tokens = prepare(config)
    _require_same_tokens(options.run, tokens)
    split = tokens.splits[options.split]
    with console.status(f"measuring on the split {options.split}"), user_errors():
        found = measure(config, model, tokens, options.split, options.rows)
        console.print(table("evaluation", {"checkpoint": str(checkpoint.path)} | _rows(found)))
        if sizes:
            found["sizes"] = _print_sizes(config, model, split, tokeniser, sizes, options.rows, console)
        if options.frequency:
            counts = evaluation.counts(tokens.splits["train"], tokeniser.vocabulary)
            totals = evaluation.by_frequency(model, passes(config, split, options.rows), counts)
            found["frequency"] = {name: {"nats": each.mean, "count": each.count} for name, each in totals.items()}
            rows = [
                (name, f"{evaluation.perplexity(each.nll, max(1, each.count)):.2f}", str(each.count))
                for name, each in totals.items()
            ]
            console.print(_table(("times in training text", "perplexity", "tokens"), rows))
        if options.position:
            positions = evaluation.by_position(model, passes(config, split, options.rows))
            found["position"] = [{"from": begin, "nats": each.mean, "count": each.count} for begin, each in positions]
            rows = [(f"{begin} to {2 * begin - 1}", f"{each.mean:.4f}", str(each.count)) for begin, each in positions]
            console.print(_table(("tokens of context", "nats a token", "tokens"), rows))
        if options.attention or options.compression:
            steps = getattr(config.model.core, "segment_size", 1)
            starts = split.starts if config.reset_documents else None
        if options.attention:
            buckets = evaluation.attention(model, one_pass(split.tokens, options.rows, steps, starts))
            found["attention"] = buckets._asdict()
            rows = [(kind, f"{mean:.4f}", f"{error:.4f}") for kind, mean, error in zip(*buckets)]
            console.print(_table(("bucket, oldest first", "attention", "standard error"), rows))
        if options.compression:
            found["compression"] = evaluation.compression_loss(
                model, one_pass(split.tokens, options.rows, steps, starts)
            )
            losses = {name.removeprefix("compression/"): f"{loss:.6f}" for name, loss in found["compression"].items()}
            console.print(table("compression loss", losses))
        if options.dynamic is not None:  # the last, for it changes the weights
            total = evaluation.dynamic(model, passes(config, split, options.rows), config.learner, options.dynamic)
            found["dynamic"] = evaluation.summary(total, split, tokeniser)
            console.print(table("dynamic evaluation", {k: f"{v:.4f}" for k, v in found["dynamic"].items()}))
        checkpoints.write_json(options.run / f"evaluation-{options.split}.json", found)


def _sizes(words: str) -> tuple[int | None, int | None]:
    try:
        memory, compressed = (int(word) if word else None for word in words.split(":"))
    except ValueError:
        raise UserError(f"sizes: expected MEMORY:COMPRESSED such as 768:3072, got {words!r}") from None
    return memory, compressed


def _print_sizes(
    config: TextConfig,
    model: SequenceModel,
    split: Split,
    tokeniser: Tokeniser,
    sizes: list[tuple[int | None, int | None]],
    rows: int,
    console: Console,
) -> list[dict[str, Any]]:
    starts = split.starts if config.reset_documents else None
    found, shown = [], []
    steps = config.learner.sequence_length
    for (memory, compressed), total in evaluation.by_memory(model, split, rows, steps, sizes, starts):
        measures = evaluation.summary(total, split, tokeniser)
        found.append({"memory_size": memory, "compressed_size": compressed, **measures})
        words = tuple("own" if size is None else str(size) for size in (memory, compressed))
        shown.append((*words, f"{measures['bits_per_byte']:.4f}", f"{measures['word_perplexity']:.2f}"))
    console.print(_table(("memory", "compressed", "bits a byte", "perplexity a word"), shown))
    return found


def _table(columns: tuple[str, ...], rows: list[Any]) -> Table:
    built = Table(*columns)
    for row in rows:
        built.add_row(*row)
    return built


def _sample(arguments: list[str]) -> None:
    prog = "compressive text sample"
    options = parse(SampleOptions, prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    torch.set_num_threads(options.threads)
    _, tokeniser, model, _ = _open_run(options.run, options.device)
    prompt = sys.stdin.buffer.read() if options.prompt == "-" else os.fsencode(options.prompt or "")
    encoded = tokeniser.encode(prompt).tolist()
    if isinstance(tokeniser, Words) and encoded and not prompt.endswith(b"\n"):
        encoded.pop()  # the prompt's last line goes on
    tokens = torch.tensor([tokeniser.separator, *encoded])
    with user_errors():
        drawn = sampling.sample(model, tokens, options.length, options.temperature, options.top_p, options.seed)
    if options.prompt != "-":
        print(prompt.decode(errors="replace"), end="", flush=True)
    decode = tokeniser.decoder()
    for token in drawn:
        print(decode(token), end="", flush=True)
    print()
