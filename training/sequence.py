"""What `compressive text train` and `compressive speech train` share: one process or several GPUs, and the terminal.

The loop is `learner.sequence_learner.train`. Here it gets a run's folder, a display, signals, and errors of one line.
"""

import math
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from rich.console import Console

from actors import ClusterError
from agent.language_model import SequenceModel
from commands.options import user_errors
from learner import checkpoints
from learner.communicator import Communicator
from learner.files import replacing
from learner.metrics import last_metrics
from learner.sequence_learner import Progress, SequenceLearner, SequenceLearnerConfig, restore, save, set_apart, train
from training import UserError
from training.console import LiveLine, duration, quantity, say, say_skipped
from training.run import ClaimedFolder, claim, holds_checkpoints
from training.signals import StopRequest, stop_on_signals

PEER_SECONDS = 600.0
"""Time that learners wait for each other: the first one evaluates meanwhile."""
LAST_SECONDS = 10.0
"""Time that learners have to write a last checkpoint when the head of their cluster is lost."""
STOP_FILE = ".stop"
"""In a run, while its learners on Ray are to stop."""


class Job(Protocol):
    """A training that several processes may do together; it is pickled for them."""

    @property
    def run(self) -> Path:
        """The run's folder."""

    @property
    def learners(self) -> int:
        """How many processes learn."""

    def plain(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""

    def make_learner(self, comm: Communicator, device: str | None) -> SequenceLearner:
        """This process's learner, on the configured device if none is given."""

    def evaluate(self, model: SequenceModel) -> dict[str, float]:
        """Metrics on held-out data."""

    def loop(self) -> dict[str, Any]:
        """Arguments of `learner.sequence_learner.train` that are numbers."""


class SequenceDisplay(LiveLine):
    """Progress of a sequence model; `describe` turns nats a token into what people of the field read."""

    def __init__(self, console: Console, describe: Callable[[float], str]) -> None:
        super().__init__(console, "training", "the first update")
        self.describe = describe

    def update(self, progress: Progress) -> None:
        """See `learner.sequence_learner.train`."""
        rate = progress.tokens_per_second / progress.tokens_per_step
        left = (progress.total - progress.step) / rate if rate else math.inf
        head = f"{quantity(progress.step)}/{quantity(progress.total)} steps  left {duration(left)}"
        fields = [f"{quantity(progress.tokens_per_second)} tokens/s", f"train {self.describe(progress.nll)}"]
        if "valid/nll" in progress.valid:
            fields.append(f"valid {self.describe(progress.valid['valid/nll'])}")
        self.show(min(1.0, progress.step / progress.total), head, fields)

    @contextmanager
    def following(self, run: Path, config: SequenceLearnerConfig, seconds: float = 1.0) -> Iterator[None]:
        """Shows what learners elsewhere write to the run's metrics."""
        ended, size = threading.Event(), config.batch_size * config.sequence_length

        def follow() -> None:
            seen = last_metrics(run).get("step", 0)
            valid: dict[str, float] = {}
            while not ended.wait(seconds):
                row = last_metrics(run)
                if row and row["step"] > seen:
                    seen = row["step"]
                    valid = {name: value for name, value in row.items() if name.startswith("valid/")} or valid
                    rate = row["speed/tokens_per_second"]
                    self.update(Progress(seen, config.steps, rate, size, row["loss/nll"], valid))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def run_training(
    job: Job,
    console: Console,
    new: bool,
    describe: Callable[[float], str],
    again: str,
    start: Callable[[SequenceLearner, checkpoints.Checkpoint | None], None],
    finish: Callable[[SequenceLearner], None],
) -> None:
    """Trains in the job's folder, here or on several GPUs, and says how to go on if it is interrupted.

    Args:
        job: what is trained.
        new: whether the folder must be new; else the run goes on from its last checkpoint.
        describe: a loss in nats a token in the field's unit.
        again: the command that goes on with the run.
        start: is told of the learner, and the checkpoint it goes on from, before the first update.
        finish: is told of the learner when all steps are done; not called if the run was stopped before.

    Raises:
        UserError: for all that the user can mend.
    """
    run = job.run
    with claim(run, new, lambda: False) as folder:

        def show(progress: Progress) -> None:
            folder.require()
            display.update(progress)

        try:
            learner = job.make_learner(Communicator(), "cpu" if job.learners > 1 else None)
            checkpoint = None if new else restore(learner, run)
        except (ValueError, FileNotFoundError, ImportError) as error:
            raise UserError(str(error)) from error
        if checkpoint:
            say_skipped(console, checkpoint.skipped)
        start(learner, checkpoint)
        checkpoints.write_json(run / "config.json", job.plain())
        try:
            with stop_on_signals() as stop, SequenceDisplay(console, describe) as display:
                if job.learners == 1:
                    train(
                        learner,
                        run,
                        job.plain(),
                        evaluate=job.evaluate,
                        show=show,
                        stop=lambda: stop.requested,
                        **job.loop(),
                    )
                else:
                    with display.following(run, learner.config):
                        _train_on_ray(job, new, stop, again)
                    restore(learner, run)
            if learner.step >= learner.config.steps:
                folder.require()
                finish(learner)
        except OSError as error:
            if folder.lost:
                raise UserError(_farewell(job, learner, folder, again)) from error
            go_on = f"; go on with: {again}" if holds_checkpoints(run) else ""
            raise UserError(f"{run} cannot be written to: {error}{go_on}") from error
        except FloatingPointError as error:
            rate, least = learner.config.learning_rate / 4, learner.config.least_learning_rate
            slower = f"{again} --learner.learning-rate {rate:.3g}"
            slower += f" --learner.least-learning-rate {rate:.3g}" if rate < least else ""
            print(f"compressive: {error} Go on from the last checkpoint, more slowly, with: {slower}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            if holds_checkpoints(run):
                say(console, f"interrupted; go on with: {again}")
            raise
        if learner.step < learner.config.steps:
            say(console, f"stopped at step {learner.step}; go on with: {again}")
            sys.exit(128 + (stop.signal or 0))


def _farewell(job: Job, learner: SequenceLearner, folder: ClaimedFolder, again: str) -> str:
    """What is left of a run whose folder was lost while it trained; what was learned is saved where the folder is."""
    found = folder.find()
    if found is None:
        return f"{folder.fate}, and with it all that was learned"
    if job.learners == 1:
        save(learner, found, job.plain(), job.loop()["keep"])
    old, new = (shlex.quote(str(path)) for path in (job.run, found))
    return f"{folder.fate}; go on with: {again.replace(f'--resume {old}', f'--resume {new}')}"


def load_weights(run: Path, model: SequenceModel, console: Console) -> checkpoints.Checkpoint:
    """Gives a model the weights of a run's last readable checkpoint.

    Raises:
        UserError: if there is none, or they do not fit the model.
    """
    with user_errors():
        checkpoint = checkpoints.load_latest(run)
    say_skipped(console, checkpoint.skipped)
    try:
        model.load_state_dict(checkpoint.parts["weights"])
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{checkpoint.path} does not fit {run / 'config.json'}: {error}") from error
    return checkpoint


def _train_on_ray(job: Job, new: bool, stop: StopRequest, again: str) -> None:
    """Ray Train places the learners, one a GPU (or CPU where there is none), and connects them.

    A file in the run tells them to stop: signals do not reach other machines.

    Raises:
        UserError: if Ray Train is not installed, there are not enough GPUs, or a learner fails; `error.txt` in the run
            then has its traceback.
    """
    try:
        import ray
        import ray.train
        from ray.train.torch import TorchTrainer

        from training.ray_head import HeadWatch
    except ImportError as error:
        raise UserError(f"several learners need Ray Train: pip install -e '.[text]' ({error})") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "local")
        cpus = {"num_cpus": max(os.cpu_count() or 1, job.learners + 1)} if address == "local" else {}
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=address, **quiet, **cpus)  # type: ignore[arg-type]
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if 0 < gpus < job.learners:
        raise UserError(f"learners: expected at most {gpus}, one a GPU, got {job.learners}")
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job, "new": new, "folder": str(Path.cwd())},
        scaling_config=ray.train.ScalingConfig(num_workers=job.learners, use_gpu=gpus > 0),
        run_config=ray.train.RunConfig(name="ray", storage_path=str(job.run.resolve())),
    )
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    # In the main thread, Ray Train would take Ctrl-C to mean the end without a checkpoint.
    thread, flag = threading.Thread(target=fit, daemon=True), job.run / STOP_FILE
    flag.unlink(missing_ok=True)
    thread.start()
    try:
        with HeadWatch() as head:
            while thread.is_alive():
                thread.join(0.2)
                if stop.requested:
                    flag.touch()
                head.check(lambda: job.run / "checkpoints")
    except ClusterError as error:
        flag.touch()
        thread.join(LAST_SECONDS)
        raise UserError(f"{error}; go on with: {again}") from error
    finally:
        flag.unlink(missing_ok=True)
        ray.shutdown()
    for failure in failures:
        with replacing(job.run / "error.txt") as temporary:
            temporary.write_text(f"{failure}\n")
        last = str(failure).strip().rpartition("\n")[2]
        message = f"the learners on Ray stopped ({last}; more in {job.run / 'error.txt'})"
        raise UserError(f"{message}; go on with: {again}") from failure


def _work(config: dict[str, Any]) -> None:
    """What each of several learners does, in a process that Ray Train started and connected with the others."""
    import ray.train.torch

    job, new = config["job"], config["new"]
    os.chdir(config["folder"])  # Ray Train chose another, and the paths of the run and its data may be relative
    torch.set_num_threads(1)
    group = dist.new_group(timeout=timedelta(seconds=PEER_SECONDS))
    learner = job.make_learner(Communicator(group), str(ray.train.torch.get_device()))
    if not new:
        restore(learner, job.run)
    set_apart(learner)
    stop = (job.run / STOP_FILE).exists if learner.comm.rank == 0 else lambda: False
    train(learner, job.run, job.plain(), evaluate=job.evaluate, stop=stop, **job.loop())
