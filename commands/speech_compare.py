"""`compressive speech compare`: models of one size on one corpus, in one figure and one table, as in section 5.6.

Each model is a run of its own in a process of its own, so a comparison that was interrupted goes on where it stopped.
"""

import csv
import dataclasses
import json
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from agent.fields import Checked, Count, Range, Several
from commands.options import parse, parse_start, user_errors
from commands.speech import digest_of, located, open_corpus, predictors, read_config, to_plain
from learner import checkpoints
from learner.files import replacing
from learner.metrics import read_metrics, sample_metrics
from learner.sequence_learner import SequenceLearnerConfig
from speech import models
from speech.corpus import CorpusConfig
from speech.training import SpeechConfig, held_out, make_preset
from training import UserError
from training.config import differences
from training.console import duration, quantity, say
from training.run import holds_checkpoints


@dataclass(frozen=True)
class Options(Checked):
    """Trains Compressive Transformer, Transformer-XL, WaveNet and LSTM of one size on one corpus and compares them.

      compressive speech compare --run runs/voices                                 synthetic voices
      compressive speech compare --run runs/lj --corpus.path LJSpeech-1.1/wavs     a folder of WAV or FLAC files

    The same command once more goes on where it stopped. Writes table.json, curves.csv and, with the extra plot,
    curves.svg: validation loss against steps.
    """

    run: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the comparison; a run of its own in it for each model."""
    preset: str = "cpu"
    """cpu or paper."""
    cores: tuple[str, ...] = tuple(models.SPEECH_CORES)
    """Which models, in this order."""
    corpus: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    """The sound."""
    learner: SequenceLearnerConfig = dataclasses.field(default_factory=SequenceLearnerConfig)
    """The learner, the same for all."""
    seed: Count = 0
    """Of weights and dropout."""
    sample_seconds: Annotated[float, Range(0, 3600.0)] = 0.5
    """Length of each model's samples at the end; 0 for none."""
    parallel: Several = 2
    """Models trained at once, which share the CPU's cores."""


def compare(arguments: list[str]) -> None:
    """Runs `compressive speech compare`."""
    options, configs, console = *_parse(arguments), Console()
    corpus = open_corpus(next(iter(configs.values())), console)
    try:
        options.run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{options.run}: expected a folder that can be written to, got: {error.strerror}") from error
    for core in configs:
        if holds_checkpoints(options.run / core) and digest_of(options.run / core) != corpus.digest:
            raise UserError(f"corpus: expected the sound that {options.run / core} was trained on; give another --run")
    _train(options, configs, console)
    config = next(iter(configs.values()))
    with console.status("fitting the linear predictor"):
        # Curves are of a part of the split.
        part = held_out(config, corpus, "validation", config.validation_samples)
        test, validation, beside = predictors(corpus, corpus.splits["test"], corpus.splits["validation"], part)
    known = {"test": test, "validation": validation}
    rows = [_row(options.run / core, core) for core in configs]
    checkpoints.write_json(options.run / "table.json", {"corpus": corpus.name, "models": rows, "predictors": known})
    _write_curves(options.run, list(configs))
    sizes = f"{corpus.sample_rate} Hz, {quantity(config.learner.steps)} steps"
    console.print(_table(rows, known, f"{corpus.name}, {sizes}: test split, and nats on the validation split"))
    say(console, f"curves: {options.run / 'curves.csv'}{_draw(options.run, list(configs), beside['linear'])}")


def _parse(arguments: list[str]) -> tuple[Options, dict[str, SpeechConfig]]:
    """The options, and the configuration of each model's run."""
    prog = "compressive speech compare"
    preset = parse_start(prog, arguments).preset
    with user_errors():
        base = make_preset(preset, "compressive")
    default = Options(run=Path("runs/speech"), preset=preset, learner=base.learner)
    options = parse(Options, prog, args=arguments, default=default, config=(tyro.conf.FlagCreatePairsOff,))
    changed = {name: getattr(options, name) for name in ("learner", "seed", "sample_seconds")}
    changed["corpus"] = located(options.corpus)
    with user_errors():
        configs = {core: dataclasses.replace(make_preset(preset, core), **changed) for core in options.cores}
        for core, config in configs.items():
            run = options.run / core
            begun = (run / "config.json").exists()
            found = list(differences(to_plain(read_config(run)), to_plain(config))) if begun else []
            for name, old, new in (change for change in found if change[0] != "corpus.path"):
                raise UserError(f"{name}: expected {old} as in {run}, got {new}; give another --run")
    if not configs:
        raise UserError(f"cores: expected at least one of {', '.join(models.SPEECH_CORES)}, got none")
    return options, configs


def _train(options: Options, configs: dict[str, SpeechConfig], console: Console) -> None:
    """Trains what is not finished, `parallel` models at once.

    Raises:
        UserError: if one fails; its output is in its log.
    """
    waiting = [core for core in configs if not (options.run / core / "evaluation.json").is_file()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    started = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < options.parallel:
                core = waiting.pop(0)
                running[core] = _start(options, core, configs[core])
                say(console, f"{core}: training, log in {options.run / f'{core}.log'}")
            time.sleep(0.5)
            for core, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[core]
                if process.returncode:
                    log = (options.run / f"{core}.log").read_text().strip().splitlines()
                    raise UserError(f"{core} ended with status {process.returncode}: {log[-1] if log else 'no output'}")
                console.print(f"{core}: done after {duration(time.monotonic() - started)}", highlight=False)
    finally:
        for process in running.values():
            process.terminate()  # leaves a checkpoint
        for process in running.values():
            process.wait()


def _start(options: Options, core: str, config: SpeechConfig) -> "subprocess.Popen[bytes]":
    """A process that trains one model, or goes on with it."""
    run = options.run / core
    resumed = ["--resume", str(run), f"--corpus.path={config.corpus.path}"]
    words = resumed if holds_checkpoints(run) else ["--core", core, "--run", str(run), *_words(config)]
    code = "import sys; from commands import main; main(sys.argv[1:])"
    threads = max(1, (os.cpu_count() or 1) // options.parallel)
    command = [sys.executable, "-c", code, "speech", "train", "--threads", str(threads), *words]
    with (options.run / f"{core}.log").open("ab") as log:
        log.write(f"# compressive {shlex.join(command[3:])}\n".encode())
        log.flush()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _words(config: SpeechConfig) -> list[str]:
    """The options that make this configuration out of its preset's."""
    preset = to_plain(make_preset(config.preset, config.core_name))
    words = ["--preset", config.preset]
    for name, _, new in differences(preset, to_plain(config)):
        *groups, last = name.replace("_", "-").split(".")
        if isinstance(new, bool):
            words.append("--" + ".".join([*groups, last if new else f"no-{last}"]))
        else:
            words.append(f"--{'.'.join([*groups, last])}={new}")
    return words


def _curve(run: Path) -> list[dict[str, Any]]:
    return read_metrics(run, "valid/nll")


def _row(run: Path, core: str) -> dict[str, Any]:
    """What the table says about a finished model."""
    summary = json.loads((run / "evaluation.json").read_text())
    speeds = sorted(row["speed/tokens_per_second"] for row in sample_metrics(run))
    names = ("parameters", "step", "nats", "bits", "validation")
    return {"core": core, **{name: summary[name] for name in names}, "samples_per_second": speeds[len(speeds) // 2]}


def _table(rows: list[dict[str, Any]], known: dict[str, dict[str, float]], title: str) -> Table:
    built = Table("model", "parameters", "nats", "bits", "validation", "samples/s", title=title, title_justify="left")
    for row in sorted(rows, key=lambda row: row["nats"]):
        losses = f"{row['nats']:.3f}", f"{row['bits']:.3f}", f"{row['validation']:.3f}"
        built.add_row(row["core"], f"{row['parameters']:,}", *losses, quantity(row["samples_per_second"]))
    for label, name in (("linear predictor", "linear"), ("frequencies", "order_0")):
        test, validation = known["test"][name], known["validation"][name]
        built.add_row(label, "", f"{test:.3f}", f"{test / math.log(2):.3f}", f"{validation:.3f}", "")
    return built


def _write_curves(run: Path, cores: list[str]) -> None:
    """Validation loss against steps, one row for each evaluation of each model."""
    with replacing(run / "curves.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["core", "step", "nats", "training_samples"])
        for core in cores:
            for row in _curve(run / core):
                writer.writerow([core, row["step"], row["valid/nll"], row["learner/tokens"]])


def _draw(run: Path, cores: list[str], linear: float) -> str:
    """Draws the curves and says where; without matplotlib it says what is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return " (a picture needs the extra plot)"
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for core in cores:
        curve = _curve(run / core)
        axes.plot([row["step"] for row in curve], [row["valid/nll"] for row in curve], label=core, linewidth=1.3)
    axes.axhline(linear, color="0.5", linewidth=0.9, linestyle=":", label="linear predictor")
    axes.set(xlabel="steps", ylabel="nats per sample, validation")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    with replacing(run / "curves.svg") as temporary:
        figure.savefig(temporary, format="svg")
    return f", {run / 'curves.svg'}"
