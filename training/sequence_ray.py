"""Several learners of a sequence model, which share the rows of each batch: placed and connected by Ray Train."""

import math
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist

from actors import ClusterError
from learner.communicator import Communicator
from learner.files import replacing
from training import UserError
from training.loop import Progress
from training.ray_head import HeadWatch
from training.run import Run
from training.sequence import MODALITIES, SequenceTrainer, progress, resume_command

PEER_SECONDS = 600.0
"""Time that learners wait for each other; the first one evaluates meanwhile."""
LAST_SECONDS = 10.0
"""Time that learners have to write a last checkpoint when the head of their cluster is lost."""
FOLLOW_SECONDS = 1.0
"""Time between two looks at the metrics that the first learner writes."""


def train_on_ray(
    trainer: SequenceTrainer, new: bool, show: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """Trains with several learners, which Ray Train places, one a GPU (or CPU where there is none), and connects.

    A file in the run tells them to stop, because signals do not reach other machines. Progress is read from the
    metrics that the first learner writes.

    Raises:
        UserError: if Ray Train is not installed, there are not enough GPUs, or a learner fails; its traceback is then
            in the run's `error.txt`.
    """
    try:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise UserError(f"several learners need Ray Train: pip install -e '.[text]' ({error})") from error
    run, config, again = trainer.run, trainer.config, resume_command(trainer.config, trainer.run.path)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "local")
        cpus = {"num_cpus": max(os.cpu_count() or 1, config.learners + 1)} if address == "local" else {}
        quietly = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=address, **quietly, **cpus)  # type: ignore[arg-type]
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if 0 < gpus < config.learners:
        raise UserError(f"learners: expected at most {gpus}, one a GPU, got {config.learners}")
    storage = str(run.path.resolve())
    learners = TorchTrainer(
        _learn,
        train_loop_config={"config": config, "data": trainer.data.folder.resolve(), "run": storage, "new": new},
        scaling_config=ScalingConfig(num_workers=config.learners, use_gpu=gpus > 0),
        run_config=RunConfig(name="ray", storage_path=storage),
    )
    failures: list[Exception] = []

    def fit() -> None:
        try:
            learners.fit()
        except Exception as error:
            failures.append(error)

    # In the main thread, Ray Train would end at Ctrl-C without a checkpoint.
    thread, follow = threading.Thread(target=fit, daemon=True), _Follower(trainer, show)
    run.stop_file.unlink(missing_ok=True)
    thread.start()
    try:
        with HeadWatch() as head:
            while thread.is_alive():
                thread.join(0.2)
                follow()
                if stop():
                    run.stop_file.touch()
                head.check(lambda: run.checkpoints)
    except ClusterError as error:
        run.stop_file.touch()
        thread.join(LAST_SECONDS)
        raise UserError(f"{error}; resume with: {again}") from error
    finally:
        run.stop_file.unlink(missing_ok=True)
        ray.shutdown()
    follow(last=True)
    for failure in failures:
        with replacing(run.error_file) as temporary:
            temporary.write_text(f"{failure}\n")
        reason = str(failure).strip().rpartition("\n")[2]
        message = f"the learners on Ray stopped ({reason}; more in {run.error_file})"
        raise UserError(f"{message}; resume with: {again}") from failure


class _Follower:
    """Shows the progress that learners in other processes write to the run's metrics."""

    def __init__(self, trainer: SequenceTrainer, show: Callable[[Progress], None]) -> None:
        self.data, self.run, self.show = trainer.data, trainer.run, show
        self.step, self.looked = trainer.learner.step, -math.inf
        self.valid: dict[str, float] = {}

    def __call__(self, last: bool = False) -> None:
        """Looks at the last row if `FOLLOW_SECONDS` have passed, or this is the last call."""
        if not last and time.monotonic() - self.looked < FOLLOW_SECONDS:
            return
        self.looked = time.monotonic()
        row = self.run.last_row()
        if row.get("step", 0) > self.step:
            self.step = row["step"]
            self.valid = {name: value for name, value in row.items() if name.startswith("valid/")} or self.valid
            self.show(progress(self.data, self.step, row["speed/tokens_per_second"], row["loss/nll"], self.valid))


def _learn(work: dict[str, Any]) -> None:
    """Runs one of several learners, in a process that Ray Train started and connected with the others."""
    from ray.train.torch import get_device

    torch.set_num_threads(1)
    run, config = Run(work["run"]), work["config"]
    group = dist.new_group(timeout=timedelta(seconds=PEER_SECONDS))
    data = MODALITIES[config.kind](config, work["data"])
    trainer = SequenceTrainer(data, run, Communicator(group), str(get_device()))
    if not work["new"]:
        trainer.restore()
    trainer.seed_rank()
    trainer.train(lambda progress: None, run.stop_file.exists if trainer.first else lambda: False)
