"""`compressive text` and `compressive speech`: train, evaluate and sample sequence models. One command per modality.

What is particular to a modality is in `text.modality` and `speech.modality`; here are their options.
"""

import functools
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text as RichText

from agent.fields import Checked, Threads
from agent.language_model import SequenceModel
from commands.options import NewFolder, RunFolder, TrainingOptions, parse, parse_training, user_errors
from learner.checkpoints import Checkpoint, write_json
from learner.files import read_json
from learner.modality import Modality, SequenceConfig, Table
from learner.sampling import sample
from speech.config import SpeechConfig
from speech.modality import SpeechEvaluation, SpeechSampling
from text import tokenization
from text.config import TextConfig
from text.modality import TextEvaluation, TextSampling, make_model
from training import UserError
from training.config import read_config
from training.console import LiveLine, counting, quantity, say, say_all, say_skipped
from training.run import Run, absolute
from training.sequence import (
    MODALITIES,
    SequenceTrainer,
    load_model,
    open_data,
    record_file,
    resume_command,
    train_run,
)
from training.signals import stop_on_signals

USAGE = """usage: compressive {kind} COMMAND [OPTIONS]

{about} on the agents' recurrent core.

  train      train a model, then measure it on the test split
  evaluate   measure a trained model on held-out data
  sample     continue a prompt with a trained model

`compressive {kind} COMMAND --help` explains a command's options. To begin:

  compressive {kind} train               {begin}, on a CPU, in minutes
  compressive {kind} evaluate runs/NAME
  compressive {kind} sample runs/NAME
"""


@dataclass(frozen=True)
class TextTraining(TextConfig, TrainingOptions):
    """Trains a language model, then measures it on the test split.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive text train                                     Python's source, bytes, one CPU core
      compressive text train --core transformer-xl               the baseline at equal attention cost
      compressive text train --core local                        attention within the segment alone
      compressive text train --corpus folder --path ~/books      any folder of text files
      compressive text train --preset enwik8 --path enwik8       the paper's models: enwik8, wikitext103, pg19
      compressive text train --model.core.compression mean --model.core.compression-loss none
      compressive text train --resume runs/NAME                  resume a run
    """


@dataclass(frozen=True)
class SpeechTraining(SpeechConfig, TrainingOptions):
    """Trains a model of waveforms, measures it on the test split and draws samples.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive speech train                                   synthetic voices, minutes on two CPU cores
      compressive speech train --corpus.path LJSpeech-1.1/wavs   a folder of WAV or FLAC files
      compressive speech train --core wavenet                    another core: transformer-xl, lstm or wavenet
      compressive speech train --preset paper --corpus.sample-rate 24000 --corpus.path DIR   section 5.6 of the paper
      compressive speech train --resume runs/NAME                resume a run
    """

    threads: Threads = 2
    """CPU threads of a learner."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """What commands that use a trained model have in common."""

    run: RunFolder
    """Folder of the run; its last readable checkpoint is used."""
    path: str | None = None
    """Where the data are, if they have moved."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 1
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class TextEvaluateOptions(TextEvaluation, RunOptions):
    """Measures a trained model on held-out text, which is read once, in order, with memory."""


@dataclass(frozen=True, kw_only=True)
class SpeechEvaluateOptions(SpeechEvaluation, RunOptions):
    """Measures a trained model: nats and bits per sample, beside fitted predictors."""

    threads: Threads = 2
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class TextSampleOptions(TextSampling, RunOptions):
    """Continues a prompt; the text appears as it is drawn."""

    path: Annotated[None, tyro.conf.Suppress] = None


@dataclass(frozen=True, kw_only=True)
class SpeechSampleOptions(SpeechSampling, RunOptions):
    """Draws waveforms, each after a prompt of real sound.

    Each clip is written as WAV, twice: the prompt with what the model drew, and the real clip that the prompt is cut
    from; all of them as spectrograms in one picture, and to TensorBoard.
    """

    out: NewFolder = None
    """Where to write; if not given, the folder samples in the run's."""


def text(arguments: Sequence[str]) -> None:
    """Runs `compressive text`."""
    _dispatch("text", arguments)


def speech(arguments: Sequence[str]) -> None:
    """Runs `compressive speech`."""
    if list(arguments[:1]) == ["compare"]:  # of version 0.1
        from commands.compare import speech_compare

        return speech_compare(arguments[1:])
    _dispatch("speech", arguments)


def _sample_text(options: TextSampleOptions) -> None:
    console, run = Console(stderr=True), Run(options.run)
    with user_errors():
        config: TextConfig = read_config(run, TextConfig)
        tokenizer = tokenization.from_plain(read_json(record_file(run, "text")))
        model = make_model(config.model, tokenizer.vocabulary)
        say_skipped(console, load_model(run, model, options.device).skipped)
    prompt = sys.stdin.buffer.read() if options.prompt == "-" else os.fsencode(options.prompt or "")
    tokens = torch.tensor([tokenization.encode_prompt(tokenizer, prompt)])
    drawn = sample(model, tokens, options.length, options.temperature, options.top_p, options.seed)
    if options.prompt != "-":
        print(prompt.decode(errors="replace"), end="", flush=True)
    decode = tokenizer.decoder()
    for token in drawn:
        print(decode(int(token)), end="", flush=True)
    print()


def _sample_speech(options: SpeechSampleOptions) -> None:
    console, run = Console(), Run(options.run)
    data: Any
    data, model, checkpoint = _open_run("speech", options, console)
    out, begin = options.out or run.samples, time.monotonic()
    with user_errors():
        if options.out:
            out.parent.mkdir(parents=True, exist_ok=True)
        count = functools.partial(counting, console)
        picture = data.draw(model, options, out, run.path, checkpoint.step, count)
    speed = options.clips * options.seconds * data.sample_rate / (time.monotonic() - begin)
    say_all(console, {"folder": str(out), "picture": str(picture), "speed": f"{quantity(speed)} samples/s"})


class Command(NamedTuple):
    """What is particular to the command of a modality: words of its usage, and its options."""

    about: str
    begin: str
    train: type
    evaluate: type
    sample: type
    draw: Callable[[Any], None]


COMMANDS = {
    "text": Command(
        "Language models: Enwik8, WikiText-103, PG-19, any folder, or Python's source,",
        "Python's source, bytes",
        *(TextTraining, TextEvaluateOptions, TextSampleOptions, _sample_text),
    ),
    "speech": Command(
        "Models of raw waveforms, 8-bit mu-law,",
        "synthetic voices",
        *(SpeechTraining, SpeechEvaluateOptions, SpeechSampleOptions, _sample_speech),
    ),
}


def _dispatch(kind: str, arguments: Sequence[str]) -> None:
    command, (name, *rest) = COMMANDS[kind], arguments or ["help"]
    if name in ("-h", "--help", "help"):
        print(USAGE.format(kind=kind, about=command.about, begin=command.begin), end="")
    elif name == "train":
        _train(kind, rest)
    elif name in ("evaluate", "sample"):
        options = parse(getattr(command, name), f"compressive {kind} {name}", rest)
        torch.set_num_threads(options.threads)
        _evaluate(kind, options) if name == "evaluate" else command.draw(options)
    else:
        raise UserError(f"{kind}: expected train, evaluate or sample, got {name!r} (see compressive {kind} --help)")


def parse_train(kind: str, arguments: Sequence[str]) -> tuple[Any, Any]:
    """The options of `compressive KIND train`, and the run's configuration among them, with absolute paths."""
    modality, prog = MODALITIES[kind], f"compressive {kind} train"
    config = modality.config_type
    options = parse_training(
        *(COMMANDS[kind].train, prog, arguments, modality.make_preset, modality.fixed),
        read=lambda run: read_config(Run(run), config),
    )
    return options, options.config_of(config).located(absolute)


def _train(kind: str, arguments: Sequence[str]) -> None:
    (options, config), console = parse_train(kind, arguments), Console()
    torch.set_num_threads(options.threads)
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{options.core}"
    run = Run(options.resume or options.run or Path("runs") / name)
    data = _open_data(config, run if options.resume else None, console)
    again, trainers = resume_command(config, run.path), []

    def start(trainer: SequenceTrainer) -> None:
        trainers.append(trainer)
        _describe(trainer, options.core, again, console)

    try:
        with stop_on_signals() as stop, ExitStack() as training:
            line = training.enter_context(LiveLine(console, "training", "the first update"))

            def count(activity: str, total: int, unit: str) -> Any:
                training.close()  # one live line at a time
                return counting(console, activity, total, unit)

            found = train_run(
                config,
                run,
                new=not options.resume,
                data=data,
                start=start,
                show=line.update,
                stop=lambda: stop.requested,
                count=count,
            )
    except FloatingPointError as error:
        print(f"compressive: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        if run.has_checkpoints:
            say(console, f"interrupted; resume with: {again}")
        raise
    if found is None:
        say(console, f"stopped at step {trainers[0].learner.step}; resume with: {again}")
        sys.exit(128 + (stop.signal or 0))
    say(console, "finished", "bold")
    _print_tables(data.tables(found), console)
    folder = shlex.quote(str(run))
    commands = {"evaluate": f"compressive {kind} evaluate {folder}", "sample": f"compressive {kind} sample {folder}"}
    say_all(console, {"curves": f"tensorboard --logdir {folder}", **commands})


def _describe(trainer: SequenceTrainer, core: str, again: str, console: Console) -> None:
    config, model, run = trainer.config, trainer.learner.model, trainer.run.path
    learning = f"{config.learners} learners on Ray" if config.learners > 1 else f"learning on {trainer.learner.device}"
    lines = {
        "run": str(run),
        "corpus": trainer.data.describe(),
        "model": f"{core} core, {quantity(sum(map(torch.numel, model.parameters())))} parameters, {learning}",
        "batch": f"{config.learner.batch_size} rows of {config.learner.sequence_length} tokens",
        "curves": f"tensorboard --logdir {shlex.quote(str(run.parent))}",
        "stop": f"Ctrl-C, then resume with: {again}",
    }
    if trainer.restored:
        say_skipped(console, trainer.restored.skipped)
        lines["resumed"] = f"from {trainer.restored.path} at step {trainer.learner.step}"
    say_all(console, lines)


def _open_data(config: SequenceConfig, run: Run | None, console: Console) -> Modality:
    """Opens the data with a message; names files that are left out."""
    status = console.status("preparing the data (once, then cached)")
    with status, user_errors(), warnings.catch_warnings(record=True) as skipped:
        data = open_data(config, run, lambda done, total: status.update(f"preparing file {done} of {total}"))
    for warning in skipped:
        say(console, str(warning.message), "yellow")
    return data


def _open_run(kind: str, options: RunOptions, console: Console) -> tuple[Modality, SequenceModel, Checkpoint]:
    """The data and the model of a run, and the checkpoint of its weights."""
    run = Run(options.run)
    with user_errors():
        config = read_config(run, MODALITIES[kind].config_type).located(absolute, options.path)
    data = _open_data(config, run, console)
    with user_errors():
        model = data.make_model()
        checkpoint = load_model(run, model, options.device)
    say_skipped(console, checkpoint.skipped)
    return data, model, checkpoint


def _evaluate(kind: str, options: Any) -> None:
    console, run = Console(), Run(options.run)
    data, model, checkpoint = _open_run(kind, options, console)
    found: dict[str, Any] = {"step": checkpoint.step}
    say(console, f"checkpoint {checkpoint.path}")
    with user_errors():
        for part in data.evaluate(model, options, functools.partial(counting, console)):
            found |= part
            write_json(run.evaluation_file(options.split), found)
            _print_tables(data.tables(part), console)


def _print_tables(tables: Iterable[Table], console: Console) -> None:
    for header, *rows in tables:
        table = RichTable(*(Column(RichText(name), overflow="fold") for name in header))
        for row in rows:
            table.add_row(*map(RichText, row))
        console.print(table)
