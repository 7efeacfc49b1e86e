"""`compressive text`, `compressive speech` and `compressive images`: train, evaluate and sample sequence models.

What is particular to a modality is in its module `modality`, such as `sequences.text.modality`.
"""

import functools
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from commands.options import ModelOptions, TextSampleOptions, TrainingOptions
from commands.shared_options import words_of
from reports.tables import print_table
from sequences.config import SequenceConfig
from sequences.kinds import CONFIGS
from sequences.modality import Modality, Table
from sequences.model import SequenceModel
from sequences.sampling import sample
from sequences.text import tokenization
from sequences.text.config import TextConfig
from sequences.text.modality import make_model
from sequences.trainer import SequenceTrainer, load_model, open_data, resume_command, train_model
from storage.checkpoints import Checkpoint
from storage.errors import UserError, user_errors
from storage.files import printable, read_json, require_no_link, write_json
from storage.run import Run, absolute, find_run, of_checkpoint
from training.console import Busy, LiveLine, counting, program, quantity, say, say_all, say_skipped
from training.plain import read_config
from training.signals import stop_on_signals


def sequence(kind: str, part: str, options: Any) -> None:
    """Runs a part of `compressive text` or another kind: train, evaluate or sample."""
    torch.set_num_threads(options.threads)
    if part == "train":
        _train(kind, options)
    elif part == "evaluate":
        _evaluate(kind, options)
    elif kind == "text":
        _sample_text(options)
    else:
        _draw_samples(kind, options)


def _train(kind: str, options: TrainingOptions) -> None:
    config = options.config
    console = Console()
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{options.core}"
    run = Run(options.resume or options.run or Path("runs") / name)
    data = _open_data(config, run if options.resume else None, console)
    how = words_of(options, "threads")
    again = f"{resume_command(config, run.path)}{how}"
    trainers: list[SequenceTrainer] = []

    def start(trainer: SequenceTrainer) -> None:
        trainers.append(trainer)
        _describe(trainer, options.core, again, console)

    with _ray(config, console), stop_on_signals() as stop, LiveLine(console, "training", "the first update") as line:
        found = train_model(
            config,
            run,
            new=not options.resume,
            data=data,
            start=start,
            show=line.update,
            stop=lambda: stop.requested,
            count=functools.partial(counting, console),
            say=functools.partial(say, console),
            how=how,
        )
    if found is None:
        (trainer,) = trainers
        say(console, f"stopped at step {trainer.learner.step}; resume with: {again}")
        sys.exit(128 + (stop.signal or 0))

    # The results, and what can be done with them.
    say(console, "finished", "bold")
    _print_tables(data.tables(found), console)
    folder = shlex.quote(str(run))
    next_commands = {
        "curves": f"{program('tensorboard')} --logdir {folder}",
        "evaluate": f"{program()} {kind} evaluate {folder}",
        "sample": f"{program()} {kind} sample {folder}",
    }
    say_all(console, next_commands)


def _ray(config: SequenceConfig, console: Console) -> AbstractContextManager[None]:
    """The Ray cluster of several learners: the one of RAY_ADDRESS, or one on this machine."""
    if config.learners == 1:
        return nullcontext()
    from training.cluster import start_ray

    return start_ray(os.environ.get("RAY_ADDRESS"), max(os.cpu_count() or 1, config.learners), 0, console)


def _describe(trainer: SequenceTrainer, core: str, again: str, console: Console) -> None:
    """Prints what the run is, when it begins or is resumed."""
    config = trainer.config
    run = trainer.run.path
    learning = f"learning on {trainer.learner.device}"
    if config.learners > 1:
        learning = f"{config.learners} learners on Ray"
    parameters = sum(map(torch.numel, trainer.learner.model.parameters()))
    lines = {
        "run": str(run),
        "corpus": trainer.data.describe(),
        "model": f"{core} core, {quantity(parameters)} parameters, {learning}",
        "batch": f"{config.learner.batch_size} rows of {config.learner.sequence_length} tokens",
        "curves": f"{program('tensorboard')} --logdir {shlex.quote(str(run.parent))}",
        "stop": f"Ctrl-C, then resume with: {again}",
    }
    if trainer.restored:
        say_skipped(console, trainer.restored.skipped)
        lines["resumed"] = f"from {trainer.restored.path} at step {trainer.learner.step}"
    say_all(console, lines)


def _open_data(config: SequenceConfig, run: Run | None, console: Console) -> Modality:
    """Opens the data with a message; names files that are left out."""
    busy = Busy(console, "preparing the data (once, then cached)")

    def count(done: int, total: int) -> None:
        busy.activity = f"preparing file {done} of {total}"

    with busy, user_errors(), warnings.catch_warnings(record=True) as skipped:
        warnings.simplefilter("always", UserWarning)  # also with PYTHONWARNINGS=ignore
        data = open_data(config, run, count)
    for warning in skipped:
        say(console, str(warning.message), "yellow")
    return data


def _open_run(kind: str, options: ModelOptions, console: Console) -> tuple[Modality, SequenceModel, Checkpoint]:
    """The data and the model of a run, and the checkpoint of its weights."""
    run = find_run(options.run)
    with user_errors():
        config = read_config(run, CONFIGS[kind]).located(absolute, options.path)
    data = _open_data(config, run, console)
    with user_errors():
        model = data.make_model()
        checkpoint = load_model(run, model, options.device)
    say_skipped(console, checkpoint.skipped)
    return data, model, checkpoint


def _evaluate(kind: str, options: Any) -> None:
    console = Console()
    run = find_run(options.run)
    data, model, checkpoint = _open_run(kind, options, console)
    found: dict[str, Any] = {"step": checkpoint.step}
    path = run.evaluation_file(of_checkpoint(options.split, run))  # the evaluation of the last one stays
    earlier = _earlier(path)
    say(console, f"checkpoint {checkpoint.path}")
    with user_errors():
        for part in data.evaluate(model, options, functools.partial(counting, console)):
            found |= part
            _print_tables(data.tables(part), console)
            write_json(path, _other_analyses(earlier, found) | found)


def _earlier(path: Path) -> dict[str, Any]:
    """An evaluation that is there already; empty if it cannot be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _other_analyses(earlier: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What an earlier evaluation has beside its plain values, if it is of the same weights and was read alike."""
    for name in ("step", "rows", "precision"):
        if earlier.get(name) != found.get(name):
            return {}
    return {name: value for name, value in earlier.items() if isinstance(value, list | dict)}


def _sample_text(options: TextSampleOptions) -> None:
    console = Console(stderr=True)
    run = find_run(options.run)
    with user_errors():
        config: TextConfig = read_config(run, TextConfig)
        tokenizer = tokenization.from_plain(read_json(run.record_file("text")))
        model = make_model(config.model, tokenizer.vocabulary)
        checkpoint = load_model(run, model, options.device)
    say_skipped(console, checkpoint.skipped)

    reads_prompt = options.prompt == "-"
    if reads_prompt and sys.stdin is None:
        raise UserError("prompt: expected a text on standard input for -, and standard input is closed")
    prompt = sys.stdin.buffer.read() if reads_prompt else os.fsencode(options.prompt or "")
    tokens = torch.tensor([tokenization.encode_prompt(tokenizer, prompt)])
    # As in training. A line's end, which separates documents of words, resets nothing: most of them are inside.
    resets = config.reset_at_starts and tokenizer.is_separator_only
    document = tokenizer.separator if resets else None
    drawn = sample(model, tokens, options.length, options.temperature, options.top_p, options.seed, document=document)

    def show(text: str) -> None:
        if sys.stdout.isatty():
            text = printable(text, layout="\n\t")
        print(text, end="", flush=True)

    # A prompt that was typed is printed before its continuation.
    if not reads_prompt:
        show(tokenization.before_continuation(tokenizer, prompt))
    decode = tokenizer.decoder()
    for token in drawn:
        show(decode(int(token)))
    print()


def _draw_samples(kind: str, options: Any) -> None:
    console = Console()
    run = find_run(options.run)
    if options.out is None:
        with user_errors():
            require_no_link(run.samples)
    data: Any
    data, model, checkpoint = _open_run(kind, options, console)
    out = options.out or (run.samples / run.checkpoint if run.checkpoint else run.samples)
    begin = time.monotonic()
    with user_errors():
        out.parent.mkdir(parents=True, exist_ok=True)
        picture = data.draw(model, options, out, run.path, checkpoint.step, functools.partial(counting, console))
    speed = data.drawn(options) / (time.monotonic() - begin)
    say_all(console, {"folder": str(out), "picture": str(picture), "speed": f"{quantity(speed)} tokens/s"})


def _print_tables(tables: Iterable[Table], console: Console) -> None:
    for head, *rows in tables:
        print_table(console, head, rows, 1)
