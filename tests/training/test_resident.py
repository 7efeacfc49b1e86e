"""Runs whose environments, actor and learner share a device: here the CPU, where they equal runs with --local."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors import ActorsConfig, Unroll
from actors.resident import ResidentActor
from agent import AgentConfig, Trajectory
from agent.core import LSTMConfig, concatenate_states, index_state, leaves, map_state
from learner.communicator import Communicator
from learner.config import LearnerConfig
from storage import checkpoints
from storage.errors import UserError
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import ENVIRONMENT, SMALL, state
from tests.learner import threads
from tests.learner.test_group import together
from tests.sequences.speech.tiny import TINY
from tests.training.test_trainer import timeless, train, train_in_parts
from training import resident as resident_runs
from training.config import RunConfig
from training.factories import make_agent, make_learner, make_pool
from training.resident import ResidentLearner
from training.trainer import Trainer

CONFIG = RunConfig(
    env="rooms:small,episode_frames=120",
    frames=10**6,
    log_every=1,
    resident=True,
    unrolls_per_update=2,
    agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8)),
    learner=LearnerConfig(optimizer="adam", device="cpu"),
    actors=ActorsConfig(num_actors=6, envs_per_actor=2, unroll_length=24),
)
RESIDENT = ["--resident", "--learner.device=cpu", "--env=diagnostic:recall,delay=3", *SMALL]


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_unrolls_are_recorded_unless_the_user_forbids_it(cuda_graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(function: Callable[[], None]) -> Callable[[], None]:
        return function

    monkeypatch.setattr(resident_runs, "graphs_of", lambda agent, device: capture)
    config = dataclasses.replace(CONFIG, learner=dataclasses.replace(CONFIG.learner, cuda_graph=cuda_graph))
    actor = resident_runs.make_pool(config, make_agent(config), 0, torch.device("cpu"))
    assert actor.capture is (capture if cuda_graph else None)


def test_on_equal_noise_a_run_learns_what_a_local_one_learns(tmp_path: Path) -> None:
    """One actor, whose unroll is one batch, in both."""
    actors = dataclasses.replace(CONFIG.actors, num_actors=1, envs_per_actor=4)
    agent = dataclasses.replace(CONFIG.agent, core=TINY["compressive"])
    evaluations = {"evaluate_every": 800, "eval_episodes": 2}
    for resident in (True, False):
        changes = {"actors": actors, "agent": agent, "unrolls_per_update": 1, "resident": resident}
        config = dataclasses.replace(CONFIG, **changes, **evaluations)
        trainer = train(config, tmp_path / str(resident), 5)
        assert trainer.episodes > 0
    assert state(tmp_path / "True") == state(tmp_path / "False")
    assert timeless(tmp_path / "True") == timeless(tmp_path / "False")
    assert sum("evaluation/return" in row for row in read_metrics(tmp_path / "True")) == 2


def test_an_unroll_is_several_updates_and_stopping_changes_nothing(tmp_path: Path) -> None:
    straight = train(CONFIG, tmp_path / "straight", 4)
    assert straight.learner.version == 12, "three batches of four rows an unroll"
    assert [row["policy_lag/max"] for row in read_metrics(tmp_path / "straight")] == [2] * 4
    stopped = train_in_parts(CONFIG, tmp_path / "stopped", (1, 3))[-1]
    assert state(tmp_path / "stopped") == state(tmp_path / "straight")
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "straight")
    assert stopped.curriculum.recent == straight.curriculum.recent

    # A run may be resumed with actors of the other kind.
    local = dataclasses.replace(CONFIG, resident=False)
    assert train(local, tmp_path / "stopped", 1, resume=True).learner.version == 13, "elsewhere with new episodes"


RECALL = "diagnostic:recall,delay=3"


@pytest.mark.parametrize("changes", [{}, {"seed": 5}, {"precision": "bfloat16"}])
@pytest.mark.parametrize("generation", [0, 33])
def test_a_pool_acts_as_an_actor_of_the_same_run_does(changes: dict[str, Any], generation: int) -> None:
    """With the run's seed and precision, in the environment of a stage, for each generation of actors."""
    actors = dataclasses.replace(CONFIG.actors, num_actors=1, precision=changes.get("precision", "float32"))
    config = dataclasses.replace(CONFIG, env=RECALL, seed=changes.get("seed", 0), actors=actors, unrolls_per_update=1)
    learner = make_learner(config, make_agent(config))

    def first_unroll(resident: bool) -> Unroll:
        playing = dataclasses.replace(config, resident=resident)
        pool = make_pool(playing, "diagnostic:recall,delay=1", generation, True, learner)
        pool.publish(learner.weights(), 7)
        return pool.get()

    ours = first_unroll(resident=True)
    theirs = first_unroll(resident=False)
    assert ours.episodes
    assert ours._replace(trajectory=None) == theirs._replace(trajectory=None)
    for one, other in zip(leaves(tuple(ours.trajectory)), leaves(tuple(theirs.trajectory)), strict=True):
        assert one.equal(other)


def make_resident_learner(seed: int = 0, comm: Communicator | None = None, learners: int = 2) -> ResidentLearner:
    """One of several learners, as its process makes it, with the weights of all of them."""
    config = dataclasses.replace(CONFIG, env=RECALL, learners=learners)
    torch.manual_seed(0)
    agent = make_agent(config)
    torch.manual_seed(seed)
    return ResidentLearner(agent, config, 10_000, comm or Communicator(), "cpu")


def test_learners_with_other_seeds_act_otherwise() -> None:
    first = make_resident_learner(seed=1).pool.get().trajectory
    again = make_resident_learner(seed=1).pool.get().trajectory
    other = make_resident_learner(seed=2).pool.get().trajectory
    assert first.action.shape == (6, 24), "half of the environments"
    assert first.observation.equal(again.observation)
    assert first.action.equal(again.action)
    assert not first.observation.equal(other.observation)
    assert not first.action.equal(other.action)


def test_learners_that_act_for_themselves_are_one_of_all_unrolls() -> None:
    """Each unroll is three updates, in each of which every learner has two rows."""
    making = threading.Lock()  # all threads have the same random numbers
    version = 30  # of a run that was resumed

    def learn(comm: Communicator, rank: int) -> tuple[ResidentLearner, list[dict[str, float]], list[Trajectory]]:
        """Three unrolls of one of two learners."""
        with making:
            learner = make_resident_learner(rank, comm)
        learner.version = version
        metrics = []
        trajectories = []
        for _ in range(3):
            metrics.append(learner.update())
            trajectories.append(map_state(torch.clone, learner.pool.trajectory))
        return learner, metrics, trajectories

    (first, metrics, own), (second, other_metrics, others) = together(learn)

    # One learner learns from the rows of both.
    alone = make_resident_learner(learners=1)
    alone.version = version
    for turn in range(3):
        for part in range(3):
            rows = slice(2 * part, 2 * part + 2)
            batch = concatenate_states([index_state(own[turn], rows), index_state(others[turn], rows)])
            expected = alone.update(batch)
        assert metrics[turn] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert metrics[turn]["policy_lag/max"] == 2
    assert metrics == other_metrics

    assert first.version == second.version == alone.version == 39
    assert first.steps == second.steps == alone.steps
    for name, weight in alone.weights().items():
        torch.testing.assert_close(first.weights()[name], weight, rtol=0, atol=1e-5)
        assert second.weights()[name].equal(first.weights()[name])
    for learner in (first, second):
        assert learner.episodes == learner.pool.episodes() != []


def test_of_an_unroll_the_batch_that_is_not_finite_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 5 of the second unroll is in its second batch of four rows: row 1 of update 5."""
    unroll = ResidentActor.unroll

    def broken(actor: ResidentActor) -> None:
        unroll(actor)
        if actor.version == 3:
            actor.trajectory.reward[5, 3] = torch.nan

    monkeypatch.setattr(ResidentActor, "unroll", broken)
    with pytest.raises(FloatingPointError, match=r"update 5 is not finite.*kept in"):
        train(CONFIG, tmp_path)
    (kept,) = tmp_path.glob("*.safetensors")
    batch = load_file(kept)
    assert batch["reward"].shape == (4, CONFIG.actors.unroll_length + 1)
    assert batch["reward"][1, 3].isnan()
    assert checkpoints.load_latest(tmp_path).state["learner"]["version"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "diagnostic:tmaze"}, "expected .*rooms.* or diagnostic:recall"),
        ({"env": "gym:some_module:Env"}, "expected .*rooms.* or diagnostic:recall"),
        ({"env": "rooms:small,rooms:full"}, "env: expected one task for resident actors, got 2"),
        ({"unrolls_per_update": 4}, "num_actors: expected a multiple of unrolls_per_update = 4"),
        ({"rows_per_update": 2}, "rows_per_update: expected none with resident actors, got 2"),
        ({"max_policy_lag": 1}, "max_policy_lag: expected at least 2, the lag of 6 resident actors, got 1"),
        ({"learner": LearnerConfig()}, "resident: expected a GPU, and torch finds none here; --learner.device cpu"),
    ],
)
def test_what_cannot_be_resident(changes: dict[str, Any], message: str) -> None:
    if "learner" in changes and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=message):
        Trainer(dataclasses.replace(CONFIG, **changes), Run(""), local=True)


@pytest.mark.parametrize("gpus", [0.0, 2.0])
def test_learners_on_a_cluster_without_gpus_are_refused(gpus: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one learner is on a machine without one, unless CPUs were asked for."""
    threads.replace_ray(monkeypatch, gpus=gpus)
    config = dataclasses.replace(CONFIG, learners=2, learner=LearnerConfig())
    trainer = Trainer(config, Run(""), local=False)
    message = r"^resident: expected GPUs, and the cluster has none; --learner\.device cpu"
    is_refused = nullcontext() if gpus else pytest.raises(UserError, match=message)
    with ExitStack() as stack, is_refused:
        trainer.start_workers(stack)


def test_what_does_not_fit_another_device_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's random generator has another state than that of a CPU."""
    train(CONFIG, tmp_path, 1)
    monkeypatch.setattr(ResidentActor, "load_state_dict", refuse)
    with pytest.raises(UserError, match=r"does not fit: generator: .*; with --no-resident actors begin new episodes"):
        train(CONFIG, tmp_path, 1, resume=True)


def refuse(actor: ResidentActor, state: Any) -> None:
    raise ValueError("generator: expected torch.uint8 [5056], got torch.uint8 [16]")


def test_neither_ray_nor_a_video_library_is_needed(tmp_path: Path) -> None:
    program = "import sys; sys.modules.update(ray=None, av=None); from commands import main; main(sys.argv[1:])"
    words = ["launch", *RESIDENT, "--frames=400", f"--run={tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "on cpu" in done.stdout
    assert (tmp_path / "run" / "evaluation.json").is_file()


@pytest.mark.slow
@pytest.mark.ray
def test_several_learners_act_for_themselves(cluster: None, tmp_path: Path) -> None:
    updates = 12
    rows_per_update = 4
    frames_per_step = 4
    frames = CONFIG.actors.unroll_length * updates * rows_per_update * frames_per_step
    config = dataclasses.replace(CONFIG, learners=2, frames=frames, evaluate_every=frames // 2, eval_episodes=2)
    trainer = train(config, tmp_path, local=False)
    assert trainer.learner.version >= updates
    environments = {episode.environment for episode in trainer.curriculum.recent[CONFIG.env]}
    assert environments == set(range(6)), "six of each learner"
    assert trainer.episodes >= 24
    rows = read_metrics(tmp_path)
    assert "loss/policy" in rows[-1]
    assert sum("evaluation/return" in row for row in rows) == 1
    again = train(dataclasses.replace(config, frames=2 * config.frames), tmp_path, 1, resume=True, local=False)
    assert again.learner.version > trainer.learner.version
