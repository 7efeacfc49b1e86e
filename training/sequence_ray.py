"""Several learners of a sequence model, which share the rows of each batch: placed and connected by Ray Train."""

import os
import threading
from collections.abc import Callable
from typing import Any

import ray

from actors import ClusterError
from learner.files import replacing
from training import UserError
from training.cluster import HeadWatch
from training.run import Run

LAST_SECONDS = 10.0
"""Time that learners have to write a last checkpoint when the head of their cluster is lost."""


def train_on_ray(
    learn: Callable[[dict[str, Any], str], None],
    arguments: dict[str, Any],
    learners: int,
    run: Run,
    again: str,
    follow: Callable[[], None],
    stop: Callable[[], bool],
) -> None:
    """Trains with several learners, which Ray Train places, one a GPU (or CPU where there is none), and connects.

    Args:
        learn: called with `arguments` and a device in the process of each learner. It must stop when the run's stop
            file exists, because signals do not reach other machines.
        again: the command that resumes the run.
        follow: called several times a second.
        stop: whether the user wants to stop.

    Raises:
        UserError: if Ray Train is not installed, there are not enough GPUs, or a learner fails; its traceback is then
            in the run's `error.txt`.
    """
    try:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise UserError(f"several learners need Ray Train: pip install -e '.[text]' ({error})") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "local")
        cpus = {"num_cpus": max(os.cpu_count() or 1, learners + 1)} if address == "local" else {}
        quietly = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=address, **quietly, **cpus)  # type: ignore[arg-type]
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if 0 < gpus < learners:
        raise UserError(f"learners: expected at most {gpus}, one a GPU, got {learners}")
    trainer = TorchTrainer(
        _learn,
        train_loop_config={"learn": learn, **arguments},
        scaling_config=ScalingConfig(num_workers=learners, use_gpu=gpus > 0),
        run_config=RunConfig(name="ray", storage_path=str(run.path.resolve())),
    )
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    # In the main thread, Ray Train would end at Ctrl-C without a checkpoint.
    thread = threading.Thread(target=fit, daemon=True)
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
    for failure in failures:
        with replacing(run.error_file) as temporary:
            temporary.write_text(f"{failure}\n")
        reason = str(failure).strip().rpartition("\n")[2]
        message = f"the learners on Ray stopped ({reason}; more in {run.error_file})"
        raise UserError(f"{message}; resume with: {again}") from failure


def _learn(work: dict[str, Any]) -> None:
    """Runs in the process of each learner, on the device that Ray chose for it."""
    from ray.train.torch import get_device

    work["learn"](work, str(get_device()))
