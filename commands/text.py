"""`compressive text`: trains language models on the shared core, measures them and draws text from them."""

import dataclasses
import os
import shlex
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

from agent.fields import Above0, AtLeast0, Checked, Count, Positive, Range, Several, Threads
from agent.language_model import SequenceModel
from commands.options import parse, parse_training, user_errors
from learner import checkpoints
from learner.sequence_learner import SequenceLearner
from learner.streams import one_pass
from text import evaluation, sampling
from text.corpora import Split, Tokens
from text.presets import TextConfig, make_preset
from text.tokenization import Tokenizer, Words
from training import UserError
from training.console import quantity, say, say_all, table
from training.run import located
from training.sequence import run_training
from training.text_runs import (
    TextJob,
    describer,
    measure,
    open_run,
    passes,
    prepare,
    read_run,
    require_same_tokens,
    rows_of,
    to_plain,
    write_tokenizer,
)

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
FIXED = (
    *("preset", "corpus", "tokens", "vocabulary", "reset_documents", "seed", "model"),
    *("learner.batch_size", "learner.sequence_length"),
)
"""What a resumed run cannot change: its checkpoints hold it. Its text may be elsewhere, if it is the same."""
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True)
class TrainOptions(TextConfig):
    """Trains a language model, then measures it on the test split.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive text train                                     Python's source, bytes, one CPU core
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
    threads: Threads = 1
    """CPU threads of a learner."""

    @property
    def config(self) -> TextConfig:
        """What belongs to the run, without what belongs to this launch of it; the path means the same from anywhere."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(TextConfig)}
        return TextConfig(**{**fields, "path": None if self.path is None else located(self.path)})


@dataclass(frozen=True)
class EvaluateOptions(Checked):
    """Measures a trained model on held-out text, as a stream with memory that goes on."""

    run: Folder
    """Folder of the run; its last readable checkpoint is taken."""
    split: Literal["train", "valid", "test"] = "test"
    """Which text."""
    rows: Several = 1
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
    dynamic: Above0 | None = None
    """Dynamic evaluation: go on training on the text, each part after it was scored, with this learning rate."""
    path: str | None = None
    """Where the corpus is, if not where it was."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 1
    """CPU threads."""


@dataclass(frozen=True)
class SampleOptions(Checked):
    """Continues a prompt; text appears as it is drawn."""

    run: Folder
    """Folder of the run; its last readable checkpoint is taken."""
    prompt: str | None = None
    """What to continue; - for standard input, which may be far longer than the memory. If not given, a new document."""
    length: Positive = 500
    """Tokens to draw."""
    temperature: AtLeast0 = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_p: Annotated[float, Range(0, 1.0, above=True)] = 0.98
    """Nucleus: the most probable tokens that have this probability together; 1 for all."""
    seed: Count = 0
    """Seed of the draws."""
    device: str = "auto"
    """Where to compute."""
    threads: Threads = 1
    """CPU threads."""


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


def _train(arguments: list[str]) -> None:
    prog, read = "compressive text train", lambda run: read_run(Path(run))
    options = parse_training(TrainOptions, prog, arguments, read, make_preset, to_plain, FIXED)
    console = Console()
    config = options.config
    torch.set_num_threads(options.threads)
    run = options.resume or options.run or Path("runs") / f"text-{time.strftime('%Y%m%d-%H%M%S')}-{options.core}"
    with console.status(f"preparing {config.corpus} (once, then cached)"), user_errors():
        folder, tokens = prepare(config)
    quoted = shlex.quote(str(run))
    again = f"compressive text train --resume {quoted}"
    if options.resume:
        require_same_tokens(options.resume, tokens)

    def start(learner: SequenceLearner, checkpoint: checkpoints.Checkpoint | None) -> None:
        write_tokenizer(run, tokens)
        _describe(config, run, tokens, learner, again, console)
        if checkpoint:
            say(console, f"resumed from {checkpoint.path} at step {learner.step}")

    def finish(learner: SequenceLearner) -> None:
        with console.status("measuring on the split test"):
            found = measure(config, learner.model, tokens, "test", config.evaluate_rows, learner.step)
        checkpoints.write_json(run / "evaluation.json", found)
        commands = {
            "curves": f"tensorboard --logdir {quoted}",
            "again": f"compressive text evaluate {quoted}",
            "sample": f"compressive text sample {quoted}",
        }
        console.print(table("finished", rows_of(found)))
        say_all(console, commands)

    job = TextJob(config, run, folder)
    run_training(job, console, not options.resume, describer(tokens.tokenizer), again, start, finish)


def _describe(
    config: TextConfig, run: Path, tokens: Tokens, learner: SequenceLearner, again: str, console: Console
) -> None:
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    sizes = ", ".join(f"{name} {quantity(split.bytes)}" for name, split in tokens.splits.items())
    learning = f"{config.learners} learners on Ray" if config.learners > 1 else f"learning on {learner.device}"
    lines = {
        "run": str(run),
        "corpus": f"{config.corpus}: bytes of {sizes}; {tokens.tokenizer.vocabulary} {config.tokens}",
        "model": f"{config.core_name} core, {quantity(parameters)} parameters, {learning}",
        "batch": f"{config.learner.batch_size} rows of {config.learner.sequence_length} tokens",
        "curves": f"tensorboard --logdir {shlex.quote(str(run.parent))}",
        "stop": f"Ctrl-C, then go on with: {again}",
    }
    say_all(console, lines)


def _evaluate(arguments: list[str]) -> None:
    prog = "compressive text evaluate"
    options = parse(EvaluateOptions, prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    torch.set_num_threads(options.threads)
    console = Console()
    sizes = [_sizes(words) for words in options.sizes]
    config, tokenizer, model, checkpoint = open_run(options.run, options.device, console)
    if options.path:
        config = dataclasses.replace(config, path=options.path)
    with console.status(f"preparing {config.corpus}"), user_errors():
        _, tokens = prepare(config)
    require_same_tokens(options.run, tokens)
    split, precision = tokens.splits[options.split], config.learner.precision
    with console.status(f"measuring on the split {options.split}"), user_errors():
        found = measure(config, model, tokens, options.split, options.rows, checkpoint.step)
        console.print(table("evaluation", {"checkpoint": str(checkpoint.path)} | rows_of(found)))
        if sizes:
            found["sizes"] = _print_sizes(config, model, split, tokenizer, sizes, options.rows, console)
        if options.frequency:
            counts = evaluation.counts(tokens.splits["train"], tokenizer.vocabulary)
            totals = evaluation.by_frequency(model, passes(config, split, options.rows), counts, precision)
            found["frequency"] = {
                name: {"nats": each.mean if each.count else None, "count": each.count} for name, each in totals.items()
            }
            rows = [
                (name, f"{evaluation.perplexity(each.nll, each.count):.2f}" if each.count else "-", str(each.count))
                for name, each in totals.items()
            ]
            console.print(_table(("times in training text", "perplexity", "tokens"), rows))
        if options.position:
            positions = evaluation.by_position(model, passes(config, split, options.rows), precision)
            found["position"] = [{"from": begin, "nats": each.mean, "count": each.count} for begin, each in positions]
            rows = [(f"{begin} to {2 * begin - 1}", f"{each.mean:.4f}", str(each.count)) for begin, each in positions]
            console.print(_table(("tokens of context", "nats a token", "tokens"), rows))
        if options.attention or options.compression:
            steps = getattr(config.model.core, "segment_size", 1)
            starts = split.starts if config.reset_documents else None
        if options.attention:
            buckets = evaluation.attention(model, one_pass(split.tokens, options.rows, steps, starts))
            found["attention"] = buckets._asdict()
            rows = [
                (kind, f"{mean:.4f}", "-" if error is None else f"{error:.4f}") for kind, mean, error in zip(*buckets)
            ]
            console.print(_table(("bucket, oldest first", "attention", "standard error"), rows))
        if options.compression:
            found["compression"] = evaluation.compression_loss(
                model, one_pass(split.tokens, options.rows, steps, starts)
            )
            losses = {name.removeprefix("compression/"): f"{loss:.6f}" for name, loss in found["compression"].items()}
            console.print(table("compression loss", losses))
        if options.dynamic is not None:  # the last, for it changes the weights
            learning = dataclasses.replace(config.learner, device=options.device)
            try:
                total = evaluation.dynamic(model, passes(config, split, options.rows), learning, options.dynamic)
            except FloatingPointError as error:
                raise UserError(f"dynamic: expected a smaller learning rate, got {options.dynamic}: {error}") from error
            measures = evaluation.summary(total, split, tokenizer)
            found["dynamic"] = {"learning_rate": options.dynamic, **measures}
            console.print(table("dynamic evaluation", {name: f"{value:.4f}" for name, value in measures.items()}))
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
    tokenizer: Tokenizer,
    sizes: list[tuple[int | None, int | None]],
    rows: int,
    console: Console,
) -> list[dict[str, Any]]:
    found, shown = [], []
    totals = evaluation.by_memory(model, lambda: passes(config, split, rows), sizes, config.learner.precision)
    for (memory, compressed), total in totals:
        measures = evaluation.summary(total, split, tokenizer)
        found.append({"memory_size": memory, "compressed_size": compressed, **measures})
        words = tuple("own" if size is None else str(size) for size in (memory, compressed))
        bits = f"{measures['bits_per_byte']:.4f}" if "bits_per_byte" in measures else "-"
        shown.append((*words, bits, f"{measures['word_perplexity']:.2f}"))
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
    _, tokenizer, model, _ = open_run(options.run, options.device, Console(stderr=True))
    prompt = sys.stdin.buffer.read() if options.prompt == "-" else os.fsencode(options.prompt or "")
    encoded = tokenizer.encode(prompt).tolist()
    if isinstance(tokenizer, Words) and encoded and not prompt.endswith(b"\n"):
        encoded.pop()  # the prompt's last line goes on
    tokens = torch.tensor([tokenizer.separator, *encoded])
    with user_errors():
        drawn = sampling.sample(model, tokens, options.length, options.temperature, options.top_p, options.seed)
    if options.prompt != "-":
        print(prompt.decode(errors="replace"), end="", flush=True)
    decode = tokenizer.decoder()
    for token in drawn:
        print(decode(token), end="", flush=True)
    print()
