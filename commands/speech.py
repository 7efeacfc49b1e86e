"""`compressive speech`: waveform models, from a folder of sound to samples that can be heard and seen.

Training is `learner.sequence_learner`, shared with text; `compare`, which runs it for several models, is in
`speech_compare.py`.
"""

import dataclasses
import math
import os
import shlex
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from agent.fields import Checked, Count, Range, Several, Slots, Threads
from agent.language_model import SequenceModel
from commands.options import parse, parse_training, user_errors
from learner import checkpoints
from learner.communicator import Communicator
from learner.files import read_json
from learner.learner import resolve_device
from learner.sequence_learner import SequenceLearner
from speech import audio, baselines, models
from speech.corpus import SYNTHETIC, Corpus, CorpusConfig, Split, excerpt, open_built, prepare
from speech.sampling import generate
from speech.spectrogram import write_spectrograms
from speech.training import SpeechConfig, held_out, make_learner, make_preset, measure, validation_metrics
from training import UserError
from training import run as folders
from training.config import build, read_plain
from training.console import quantity, say, say_all, table
from training.sequence import load_weights, run_training

USAGE = """usage: compressive speech COMMAND [OPTIONS]

Models raw waveforms, 8-bit mu-law, with the same recurrent cores as agents and text.

  train      train a model on a folder of WAV or FLAC files, or on synthetic voices
  evaluate   nats and bits per sample of a run's model, beside fitted predictors
  sample     draw waveforms after a prompt of real sound: WAV, spectrograms, TensorBoard
  compare    Compressive Transformer, Transformer-XL, WaveNet and LSTM of one size on one corpus

`compressive speech COMMAND --help` explains a command's options.
"""
FIXED = (
    *("preset", "seed", "model.", "reset_at_files", "learner.batch_size", "learner.sequence_length"),
    *(f"corpus.{field.name}" for field in dataclasses.fields(CorpusConfig) if field.name != "path"),
)
"""What a resumed run cannot change: its checkpoints depend on it. Its corpus may be elsewhere, if it is the same."""
Seconds = Annotated[float, Range(0, 3600.0, above=True)]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


def speech(arguments: Sequence[str]) -> None:
    """Runs the command that the first argument names."""
    from commands.speech_compare import compare

    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train, "evaluate": _evaluate, "sample": _sample, "compare": compare
    }  # fmt: skip
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] not in commands:
        raise UserError(f"speech: expected a command out of {', '.join(commands)}, got {arguments[0]!r}")
    commands[arguments[0]](list(arguments[1:]))


@dataclass(frozen=True)
class Options(SpeechConfig):
    """Trains a model of waveforms, measures it on the test split and draws samples.

    compressive speech train                                    synthetic voices, a small model, minutes on two cores
    compressive speech train --corpus.path LJSpeech-1.1/wavs    a folder of WAV or FLAC files
    compressive speech train --core wavenet                     another core
    compressive speech train --preset paper --corpus.sample-rate 24000 --corpus.path DIR   section 5.6 of the paper
    compressive speech train --resume runs/NAME                 go on where a run stopped
    """

    core: str = "compressive"
    """Recurrent core: compressive, transformer-xl, lstm or wavenet."""
    run: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the run, new or empty; if not given, runs/speech-DATE-TIME-CORE."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Go on with the run in this folder, exactly where its last readable checkpoint is."""
    threads: Threads = 2
    """CPU threads."""

    @property
    def config(self) -> SpeechConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(SpeechConfig)}
        return SpeechConfig(**{**fields, "corpus": located(self.corpus)})


def located(corpus: CorpusConfig, path: str | None = None) -> CorpusConfig:
    """The corpus with a path, its own if no other is given, that means the same from any folder."""
    path = corpus.path if path is None else path
    return dataclasses.replace(corpus, path=path if path == SYNTHETIC else folders.located(path))


def to_plain(config: SpeechConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it; the core's name stands beside its fields."""
    plain = dataclasses.asdict(config)
    return plain | {"kind": "speech", "model": {"name": config.core_name, **plain["model"]}}


def read_config(run: Path) -> SpeechConfig:
    """The configuration of a run's folder.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if it is no run of speech, or its `config.json` cannot be read.
    """
    plain = read_plain(run, "speech")
    try:
        return build(SpeechConfig, plain, "config", models.SPEECH_CORES)
    except ValueError as error:
        raise ValueError(f"{run / 'config.json'}: {error}") from error


def cache_folder() -> Path:
    """Where built corpora are kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / "speech"


def open_corpus(config: SpeechConfig, console: Console, digest: str | None = None) -> Corpus:
    """The corpus of a configuration, built if need be.

    Raises:
        UserError: what is wrong with the files, or that they are not those of the digest.
    """
    with console.status("reading the corpus") as status, user_errors(), warnings.catch_warnings(record=True) as skipped:
        corpus = prepare(
            config.corpus, cache_folder(), lambda done, total: status.update(f"encoding file {done} of {total}")
        )
    for warning in skipped:
        say(console, str(warning.message), "yellow")
    if digest not in (None, corpus.digest):
        raise UserError(f"corpus: expected the sound that the run was trained on, got another in {config.corpus.path}")
    return corpus


@dataclass(frozen=True)
class SpeechJob:
    """A training of a waveform model; see `training.sequence.Job`."""

    config: SpeechConfig
    run: Path
    corpus: Path
    """Folder of the built corpus."""

    @property
    def learners(self) -> int:
        """How many processes learn."""
        return self.config.learners

    def plain(self) -> dict[str, Any]:
        """The configuration."""
        return to_plain(self.config)

    def make_learner(self, comm: Communicator, device: str | None) -> SequenceLearner:
        """A learner of this process's rows of the training split, with weights that depend on the seed alone."""
        learner = self.config.learner
        config = dataclasses.replace(self.config, learner=dataclasses.replace(learner, device=device or learner.device))
        return make_learner(config, open_built(self.corpus), comm)

    def evaluate(self, model: SequenceModel) -> dict[str, float]:
        """On a part of the validation split."""
        return validation_metrics(self.config, open_built(self.corpus), model)

    def loop(self) -> dict[str, Any]:
        """See `learner.sequence_learner.train`."""
        config = self.config
        return {
            "log_every": config.log_every,
            "checkpoint_seconds": config.checkpoint_seconds,
            "keep": config.keep_checkpoints,
            "evaluate_every": config.validate_every,
        }


def _train(arguments: list[str]) -> None:
    prog, read = "compressive speech train", lambda run: read_config(Path(run))
    options = parse_training(Options, prog, arguments, read, make_preset, to_plain, FIXED)
    console = Console()
    torch.set_num_threads(options.threads)
    config = options.config
    run = options.resume or options.run or Path("runs") / f"speech-{time.strftime('%Y%m%d-%H%M%S')}-{config.core_name}"
    corpus = open_corpus(config, console, digest_of(run) if options.resume else None)
    again = f"compressive speech train --resume {shlex.quote(str(run))}"

    def start(learner: SequenceLearner, checkpoint: checkpoints.Checkpoint | None) -> None:
        checkpoints.write_json(run / "corpus.json", {"name": corpus.name, "digest": corpus.digest})
        size = models.parameters(learner.model)
        lengths = ", ".join(f"{split} {corpus.seconds(split) / 60:.1f} min" for split in corpus.splits)
        lines = {
            "run": str(run),
            "corpus": f"{corpus.name}, {corpus.sample_rate} Hz: {lengths}",
            "model": f"{config.core_name}, {quantity(size)} parameters, on {learner.device}",
            "batch": f"{config.learner.batch_size} rows of {config.learner.sequence_length} samples",
            "curves": f"tensorboard --logdir {shlex.quote(str(run.parent))}",
            "stop": f"Ctrl-C, then go on with: {again}",
        }
        say_all(console, lines)
        if checkpoint:
            say(console, f"resumed from {checkpoint.path} at step {learner.step}")

    def finish(learner: SequenceLearner) -> None:
        model = learner.model
        test, validation = corpus.splits["test"], corpus.splits["validation"]
        with console.status("measuring the test and validation splits"):
            summary = {"split": "test", **measure(config, model, test), **predictors(corpus, test)[0]}
            summary["validation"] = measure(config, model, validation)["nats"]
            summary["parameters"] = models.parameters(model)
        rows = evaluation_rows(summary)
        if config.sample_seconds:
            wish = SampleOptions(run, seconds=config.sample_seconds, prompt_seconds=config.sample_seconds, clips=1)
            try:
                rows["samples"] = str(_draw_samples(wish, run / "samples", corpus, model, console))
            except UserError as error:
                rows["samples"] = f"none: {error}"
        # Last, for it says that the run is finished.
        checkpoints.write_json(run / "evaluation.json", summary | {"step": learner.step})
        console.print(table("finished", rows))
        say_all(console, {"again": f"compressive speech sample {shlex.quote(str(run))}"})

    run_training(
        SpeechJob(config, run, corpus.folder), console, not options.resume, "{:.3f} nats".format, again, start, finish
    )


def digest_of(run: Path) -> str:
    """The digest of the sound that a run was trained on.

    Raises:
        UserError: if the run does not say, or its file is damaged.
    """
    path = run / "corpus.json"
    with user_errors():
        plain = read_json(path)
        checkpoints.require(plain, {"digest": str}, f"{path}: expected what the run was trained on")
    return plain["digest"]


def _minutes(corpus: Corpus, split: str) -> str:
    return f"{corpus.seconds(split) / 60:.1f} min"


def predictors(corpus: Corpus, *parts: Split, size: int = 1 << 18) -> list[dict[str, float]]:
    """What is known of each held-out part without a network, in nats per sample; fitted to the training split."""
    train, found = corpus.splits["train"].tokens, []
    linear = baselines.fit_linear_predictor(train)
    for tokens in (part.tokens for part in parts):
        blocks = (np.asarray(tokens[begin : begin + size]) for begin in range(0, len(tokens), size))
        nll = sum(float(linear.nll(block).sum()) for block in blocks)
        found.append({"order_0": baselines.order_0(train, tokens), "linear": nll / len(tokens)})
    return found


def evaluation_rows(summary: dict[str, Any]) -> dict[str, str]:
    """An evaluation as rows of a table."""
    files = sorted(summary["files"].items(), key=lambda item: item[1])
    (best, least), (worst, most) = files[0], files[-1]
    return {
        f"{summary['split']} split": f"{summary['nats']:.3f} nats, {summary['bits']:.3f} bits per sample, "
        f"over {quantity(summary['samples'])} samples",
        "files": f"{len(files)}: from {least:.3f} nats ({best}) to {most:.3f} ({worst})",
        "linear predictor": f"{summary['linear']:.3f} nats",
        "frequencies": f"{summary['order_0']:.3f} nats (order 0; uniform: {math.log(audio.LEVELS):.3f})",
    }


@dataclass(frozen=True)
class EvaluateOptions(Checked):
    """Measures the model of a run: negative log-likelihood in nats and bits per sample, beside fitted predictors."""

    run: Run
    """Folder of the run, as `compressive speech train` made it; its last readable checkpoint is taken."""
    split: Literal["train", "validation", "test"] = "test"
    """What to measure on."""
    samples: Annotated[int, Range(2, 2**63 - 1)] | None = None
    """At most so many samples, in pieces spread over the split; none for all."""
    memory_size: Slots | None = None
    """Another size of the memory than the model was trained with."""
    compressed_size: Slots | None = None
    """Another size of the compressed memory than the model was trained with."""
    path: str | None = None
    """Where the corpus is, if not where it was."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 2
    """CPU threads."""


def _evaluate(arguments: list[str]) -> None:
    options, console = parse(EvaluateOptions, "compressive speech evaluate", args=arguments), Console()
    config, corpus, model, checkpoint = _load(options, console)
    sizes = {name: getattr(options, name) for name in ("memory_size", "compressed_size")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    with user_errors():
        model = model.resized(**sizes) if sizes else model
    with console.status(f"measuring the {options.split} split"):
        part = held_out(config, corpus, options.split, options.samples)
        summary = {"split": options.split, **measure(config, model, part), **predictors(corpus, part)[0], **sizes}
        summary["step"] = checkpoint.step
    checkpoints.write_json(options.run / f"evaluation-{options.split}.json", summary)
    console.print(table(f"{config.core_name}, {corpus.name}", evaluation_rows(summary)))


def _load(
    options: "EvaluateOptions | SampleOptions", console: Console
) -> tuple[SpeechConfig, Corpus, SequenceModel, checkpoints.Checkpoint]:
    """Configuration, corpus and model of a run, and the checkpoint that its weights are of.

    Raises:
        UserError: what is wrong with the run or the corpus.
    """
    torch.set_num_threads(options.threads)
    with user_errors():
        config = read_config(options.run)
        config = dataclasses.replace(config, corpus=located(config.corpus, options.path))
        model = models.make_model(config.model).to(resolve_device(options.device))
    checkpoint = load_weights(options.run, model, console)
    return config, open_corpus(config, console, digest_of(options.run)), model.eval(), checkpoint


@dataclass(frozen=True)
class SampleOptions(Checked):
    """Draws waveforms from the model of a run, each after a prompt of real sound.

    Each clip is written as WAV, twice: the prompt with what the model made of it, and the real clip that the prompt was
    cut from; all of them as spectrograms in one picture, and to TensorBoard.
    """

    run: Run
    """Folder of the run, as `compressive speech train` made it; its last readable checkpoint is taken."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to write; if not given, the folder samples in the run's."""
    seconds: Seconds = 1.0
    """To draw after each prompt."""
    prompt_seconds: Seconds = 1.0
    """Of real sound before."""
    clips: Several = 2
    """How many, drawn together."""
    split: Literal["train", "validation", "test"] = "validation"
    """Where the prompts come from."""
    temperature: Annotated[float, Range(0.001)] = 1.0
    """Below 1 the likelier samples get likelier still."""
    seed: Count = 0
    """Of the draws."""
    path: str | None = None
    """Where the corpus is, if not where it was."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 1
    """CPU threads."""


def _sample(arguments: list[str]) -> None:
    options, console = parse(SampleOptions, "compressive speech sample", args=arguments), Console()
    _, corpus, model, _ = _load(options, console)
    out = options.out or options.run / "samples"
    begin = time.monotonic()
    picture = _draw_samples(options, out, corpus, model, console)
    speed = options.clips * options.seconds * corpus.sample_rate / (time.monotonic() - begin)
    rows = {"folder": str(out), "picture": str(picture), "speed": f"{quantity(speed)} samples/s"}
    console.print(table(f"{options.clips} clips", rows))


def _draw_samples(options: SampleOptions, out: Path, corpus: Corpus, model: SequenceModel, console: Console) -> Path:
    """Writes WAVs, spectrograms and TensorBoard events; returns the picture's path."""
    rate, split = corpus.sample_rate, corpus.splits[options.split]
    prompt, length = max(1, round(options.prompt_seconds * rate)), max(1, round(options.seconds * rate))
    with user_errors(), console.status("drawing samples") as status:
        real = np.stack([excerpt(split, prompt + length, number) for number in range(options.clips)])
        drawn = generate(
            model,
            real[:, :prompt],
            length,
            options.temperature,
            options.seed,
            lambda done, total: status.update(f"drawing sample {done} of {total}"),
        )
    clips: dict[str, np.ndarray] = {}
    for number in range(options.clips):
        clips[f"real-{number}"] = audio.decode(real[number])
        clips[f"sample-{number}"] = audio.decode(np.concatenate([real[number, :prompt], drawn[number]]))
    try:
        out.mkdir(parents=out != options.run / "samples", exist_ok=True)  # not a run's folder that was moved away
        for name, waveform in clips.items():
            audio.write_wav(out / f"{name}.wav", waveform, rate)
        picture = write_spectrograms(out / "spectrograms.png", clips, rate, mark=options.prompt_seconds)
        step = checkpoints.load_latest(options.run).step
        with SummaryWriter(str(options.run)) as events:
            for name, waveform in clips.items():
                events.add_audio(name, torch.from_numpy(waveform), step, sample_rate=rate)
            events.add_image("spectrograms", np.asarray(picture), step, dataformats="HWC")
    except OSError as error:
        raise UserError(f"{out} cannot be written to: {error}") from error
    return out / "spectrograms.png"
