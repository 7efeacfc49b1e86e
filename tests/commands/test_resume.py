"""A run that was interrupted, however often and however rudely, ends as if it never had been."""

import dataclasses
import signal
from pathlib import Path

import pytest

from actors import ActorsConfig
from agent import AgentConfig
from agent.core import CompressiveTransformerConfig, CoreConfig, LSTMConfig, TransformerXLConfig
from commands import main
from learner.metrics import read_metrics
from tests.commands.cli import TINY, frames, saved_steps, start, state, wait_until
from training.config import RunConfig
from training.impala import Progress, Trainer
from training.signals import StopRequest

SIZES = {"model_size": 16, "num_layers": 1, "num_heads": 2, "mlp_size": 16, "segment_size": 4, "memory_size": 4}
CORES: dict[str, CoreConfig] = {
    "compressive": CompressiveTransformerConfig(**SIZES, compressed_size=4, compression_rate=2, dropout=0.2),  # type: ignore[arg-type]
    "transformer-xl": TransformerXLConfig(**SIZES),  # type: ignore[arg-type]
    "lstm": LSTMConfig(model_size=16),
}


class StopAfter:
    """A display that asks to stop after some updates."""

    def __init__(self, updates: int) -> None:
        self.left, self.stop = updates, StopRequest()

    def update(self, progress: Progress) -> None:
        self.left -= 1
        if not self.left:
            self.stop.signal = signal.SIGINT


def train(config: RunConfig, folder: Path, updates: int, resume: bool = False) -> Trainer:
    trainer = Trainer(config, folder, local=True)
    if resume:
        trainer.restore()
    display = StopAfter(updates)
    trainer.train(display, display.stop)
    return trainer


def timeless(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics without what the clock decides."""
    clock = ("time", "speed/", "learner/idle")
    rows = read_metrics(folder)
    return [{name: value for name, value in row.items() if not name.startswith(clock)} for row in rows]


@pytest.mark.parametrize("core", CORES)
def test_stopping_anywhere_changes_nothing(core: str, tmp_path: Path) -> None:
    """Two actors take turns, so that stops after odd and even numbers of unrolls differ; dropout draws at random."""
    config = RunConfig(
        env="rooms:small,episode_frames=120",
        frames=10**6,
        log_every=2,
        agent=AgentConfig(torso="small", torso_size=8, core=CORES[core]),
        actors=ActorsConfig(num_actors=2, envs_per_actor=2, unroll_length=20),
    )
    straight = train(config, tmp_path / "straight", 8)
    for first, *others, last in ((1, 7), (4, 3, 1)):
        folder = tmp_path / f"stopped after {first}"
        train(config, folder, first)
        for updates in others:
            train(config, folder, updates, resume=True)
        stopped = train(config, folder, last, resume=True)
        assert stopped.learner.version == straight.learner.version == 8
        assert state(folder) == state(tmp_path / "straight")
        assert stopped.episodes == straight.episodes > 0
        assert stopped.recent == straight.recent
        assert timeless(folder) == timeless(tmp_path / "straight")


def test_another_number_of_actors_begins_fresh_episodes(tmp_path: Path) -> None:
    config = RunConfig(
        env="rooms:small,episode_frames=120",
        frames=10**6,
        agent=AgentConfig(torso="small", torso_size=8, core=CORES["lstm"]),
        actors=ActorsConfig(num_actors=2, envs_per_actor=2, unroll_length=20),
    )
    before = train(config, tmp_path, 3)
    more = dataclasses.replace(config, actors=dataclasses.replace(config.actors, num_actors=3, envs_per_actor=4))
    after = train(more, tmp_path, 3, resume=True)
    assert after.learner.version == before.learner.version + 3


def test_ctrl_c_then_kill_9_then_the_end(
    finished: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "interrupted"
    end = saved_steps(finished[0])[-1]
    with (tmp_path / "screen").open("w+") as screen:
        process = start("launch", "--local", "--run", folder, "--frames", frames(30), *TINY, output=screen)
        wait_until(lambda: len(saved_steps(folder)) > 1, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        screen.seek(0)
        assert f"go on with: compressive launch --resume {folder} --local" in screen.read()
    first = saved_steps(folder)[-1]
    assert 0 < first < end, "stopped too late to show anything"

    process = start("launch", "--local", "--resume", folder)
    wait_until(lambda: saved_steps(folder)[-1] > first, process)
    process.kill()
    process.wait()
    assert first < saved_steps(folder)[-1] < end, "killed too late to show anything"

    main(["launch", "--local", "--resume", str(folder), "--video-episodes=0"])
    assert f"resumed from {folder}" in capfd.readouterr().out
    assert state(folder) == state(finished[0])
    assert [row["step"] for row in read_metrics(folder)] == [row["step"] for row in read_metrics(finished[0])]
    assert (folder / "evaluation.json").read_bytes() == (finished[0] / "evaluation.json").read_bytes()
    # What is finished can be resumed, too: it is only evaluated again, or trained for longer if it is asked to.
    steps = saved_steps(folder)
    main(["launch", "--local", "--resume", str(folder), f"--frames={frames(32)}", "--video-episodes=0"])
    assert saved_steps(folder)[-1] > steps[-1]
