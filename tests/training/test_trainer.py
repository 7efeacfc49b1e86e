"""An agent's training: interruption, policy lag, errors, checkpoints behind URLs, and seeds of its actors."""

import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import envs
from actors import ActorsConfig, Episode, LocalPool, Unroll
from agent import AgentConfig
from agent.core import LSTMConfig
from benchmarks.soak import Options as SoakOptions
from benchmarks.soak import SoakTrainer
from envs.dmlab import TEST_MIXER, TRAINING_MIXERS
from learner.communicator import Communicator
from learner.errors import NotFinite
from learner.learner import Learner
from storage import checkpoints
from storage.errors import UserError
from storage.metrics import read_metrics
from storage.provenance import read_launches
from storage.run import Run
from tests.commands.cli import state
from tests.sequences.speech.tiny import TINY
from training import factories
from training.advice import advising
from training.config import RunConfig
from training.evaluation import make_evaluator
from training.factories import episode_stream, make_actor, make_agent
from training.feeds import LocalFeed
from training.plain import to_plain
from training.schedules import describe_jump
from training.signals import stop_on_signals
from training.trainer import Trainer, train_agent

AGENT = AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8))
CONFIG = RunConfig(
    env="rooms:small,episode_frames=120",
    frames=10**6,
    agent=AGENT,
    actors=ActorsConfig(num_actors=2, envs_per_actor=2, unroll_length=20, cpus=0.5),
)
CORES = {"compressive": dataclasses.replace(TINY["compressive"], dropout=0.2), "lstm": TINY["lstm"]}


def train(
    config: RunConfig,
    folder: Path,
    updates: int | None = None,
    resume: bool = False,
    then: Callable[[], Any] = lambda: True,
    local: bool = True,
) -> Trainer:
    """Trains to the end of the run, or stops after a number of updates.

    `then` is called once, after these updates; training continues unless it returns true.
    """
    trainer = Trainer(config, Run(folder), local)
    if resume:
        trainer.restore()
    folder.mkdir(parents=True, exist_ok=True)
    trainer.run.write_config(to_plain(trainer.config))

    done = 0
    stop: Any = False
    if updates == 0:
        stop = then()

    def show(progress: Any) -> None:
        nonlocal done, stop
        done += 1
        if done == updates:
            stop = then()

    trainer.train(show, lambda: bool(stop))
    return trainer


def train_in_parts(config: RunConfig, folder: Path, parts: Iterable[int]) -> list[Trainer]:
    """A run that is stopped after each of these numbers of updates and then resumed; the trainer of each part."""
    trainers: list[Trainer] = []
    for updates in parts:
        resume = len(trainers) > 0
        trainers.append(train(config, folder, updates, resume))
    return trainers


def timeless(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics without measured times, which differ between equal runs."""
    clock = ("time", "speed/", "learner/idle")
    rows = read_metrics(folder)
    return [{name: value for name, value in row.items() if not name.startswith(clock)} for row in rows]


@pytest.mark.parametrize("core", CORES)
def test_stopping_anywhere_changes_nothing(core: str, tmp_path: Path) -> None:
    """Two actors take turns, so stops after odd and even numbers of unrolls differ; dropout draws at random."""
    agent = dataclasses.replace(AGENT, core=CORES[core])
    actors = dataclasses.replace(CONFIG.actors, unroll_length=24)
    config = dataclasses.replace(CONFIG, log_every=2, agent=agent, actors=actors)
    straight = train(config, tmp_path / "straight", 8)
    for parts in ((1, 7), (4, 3, 1)):
        folder = tmp_path / f"stopped after {parts[0]}"
        stopped = train_in_parts(config, folder, parts)[-1]
        assert stopped.learner.version == straight.learner.version == 8
        assert state(folder) == state(tmp_path / "straight")
        assert stopped.episodes == straight.episodes > 0
        assert stopped.curriculum.recent == straight.curriculum.recent
        assert timeless(folder) == timeless(tmp_path / "straight")

    # The states of two actors do not fit three. An evaluation of earlier weights is renamed when training continues.
    actors = dataclasses.replace(config.actors, num_actors=3, envs_per_actor=4)
    Run(folder).evaluation_file().write_text("{}")
    after = train(dataclasses.replace(config, actors=actors), folder, 3, resume=True)
    assert after.learner.version == 11, "another number of actors begins new episodes"
    assert [path.name for path in folder.glob("evaluation*")] == [f"evaluation-at-{stopped.step}.json"]


def test_evaluations_change_nothing_and_resume_exactly(tmp_path: Path) -> None:
    """An update has almost 160 frames, so that each second one reaches a multiple of 300 and is evaluated."""
    every = 300
    config = dataclasses.replace(CONFIG, log_every=3, eval_episodes=2)
    measuring = dataclasses.replace(config, evaluate_every=every)
    train(config, tmp_path / "without", 8)
    train(measuring, tmp_path / "straight", 8)
    train_in_parts(measuring, tmp_path / "stopped", (3, 1, 4))
    assert state(tmp_path / "stopped") == state(tmp_path / "straight") == state(tmp_path / "without")
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "straight")

    rows = read_metrics(tmp_path / "straight")
    measured = [row for row in rows if "evaluation/return" in row]
    assert [row["learner/frames"] // every for row in measured] == [1, 2, 3, 4]
    assert len(rows) == 5, "four evaluations and update 3; update 6, which also has a row, is one of the four"
    for row in measured:
        assert row["evaluation/return_low"] <= row["evaluation/return"] <= row["evaluation/return_high"]
        assert row["evaluation/episodes"] == 2
    assert len(read_launches(Run(tmp_path / "stopped"))) == 3


def never_ending(begun: list[bool]) -> Callable[..., Any]:
    """An evaluation that ends only because its progress is told: `begun` says that it has begun."""

    def evaluate(config: RunConfig, agent: Any, progress: Callable[[int], None]) -> Any:
        begun.append(True)
        progress(0)
        raise AssertionError("it was not stopped")

    return evaluate


def test_an_evaluation_during_training_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was learned before it is saved."""
    begun: list[bool] = []
    monkeypatch.setattr("training.trainer.evaluate", never_ending(begun))
    trainer = Trainer(dataclasses.replace(CONFIG, evaluate_every=450, log_every=1), Run(tmp_path), local=True)
    trainer.run.write_config(to_plain(trainer.config))
    trainer.train(lambda progress: None, lambda: bool(begun))
    assert begun == [True]
    assert trainer.frames >= 450
    assert checkpoints.load_latest(tmp_path).step == trainer.step
    assert read_metrics(tmp_path)[-1]["step"] == trainer.step, "its row is there without the evaluation"

    # It is made up for after the first update of the resumed run, and only once.
    monkeypatch.undo()
    train(dataclasses.replace(trainer.config, eval_episodes=2), tmp_path, 2, resume=True)
    *_, before, first, second = read_metrics(tmp_path)
    assert "evaluation/return" not in before
    assert "evaluation/return" in first
    assert "evaluation/return" not in second


def test_a_run_that_has_passed_its_new_frames_is_finished(tmp_path: Path) -> None:
    """Its last row of metrics may be of an earlier update."""
    config = dataclasses.replace(CONFIG, log_every=3)
    frames = train(config, tmp_path, 4).frames
    last = read_metrics(tmp_path)[-1]["learner/frames"]
    assert last < frames
    trainer = train(dataclasses.replace(config, frames=int(last) + 1), tmp_path, resume=True)
    assert trainer.frames == frames
    assert read_metrics(tmp_path)[-1]["learner/frames"] == frames
    assert trainer.run.state(trainer.run.last_row(), *trainer.config.goal) == "trained, but not evaluated"


def test_a_trained_agent_whose_evaluation_was_stopped_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same call, also with checkpoints at a URL."""
    begun: list[bool] = []
    config = dataclasses.replace(CONFIG, frames=300, eval_episodes=2, checkpoint_url=f"file://{tmp_path / 'store'}")
    run = Run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("training.trainer.evaluate", never_ending(begun))
        assert not train_agent(config, run, stop=lambda: bool(begun))
    assert begun == [True]
    assert not run.evaluation_file().exists()
    rows = read_metrics(run.path)

    assert train_agent(config, run)
    assert run.evaluation_file().exists()
    assert read_metrics(run.path) == rows, "nothing was left to learn"

    # Another folder is another run, and the URL is not its own.
    with pytest.raises(UserError, match="store"):
        train_agent(config, Run(tmp_path / "other"))


@pytest.mark.parametrize(("limit", "dropped"), [(None, 0), (3, 0), (2, 3)])
def test_only_unrolls_older_than_the_limit_are_dropped(
    limit: int | None, dropped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third unroll says that it is three versions old, and each that one episode has ended."""
    get = LocalPool.get
    versions: list[int] = []

    def sometimes_late(pool: LocalPool, *_: Any) -> Unroll:
        unroll = get(pool)
        version = int(unroll.trajectory.version[0])
        if len(versions) % 3 == 2:
            version -= 3
        versions.append(version)
        late = unroll.trajectory._replace(version=torch.full_like(unroll.trajectory.version, version))
        episode = Episode(score=1.0, steps=30, environment=0, actor_id=0, version=0)
        return Unroll(late, [episode], version, unroll.rows)

    monkeypatch.setattr(LocalPool, "get", sometimes_late)
    config = dataclasses.replace(CONFIG, max_policy_lag=limit, log_every=1)
    trainer = train(config, tmp_path, 8)
    rows = read_metrics(tmp_path)
    assert trainer.learner.version == 8
    assert len(versions) == 8 + dropped
    assert rows[-1]["actors/unrolls_dropped"] == dropped
    greatest_lag = 0 if dropped else 3
    assert max(row["policy_lag/max"] for row in rows) == greatest_lag
    assert trainer.episodes == len(versions), "episodes of dropped unrolls count"

    # A resumed run continues the count: the next unroll is late again.
    again = train(config, tmp_path, 1, resume=True)
    dropped_in_all = dropped + 1 if dropped else 0
    assert again.dropped == dropped_in_all


@pytest.mark.parametrize(("owner", "method"), [(LocalPool, "get"), (Learner, "update"), (LocalPool, "publish")])
def test_errors_do_not_lose_what_was_learned(
    owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth call fails, after five updates."""
    function = getattr(owner, method)
    calls = itertools.count(1)

    def fails_at_last(*arguments: Any) -> Any:
        if next(calls) == 6:
            raise RuntimeError("broken")
        return function(*arguments)

    monkeypatch.setattr(owner, method, fails_at_last)
    with pytest.raises(RuntimeError, match="broken"):
        train(CONFIG, tmp_path)
    checkpoint = checkpoints.load_latest(tmp_path)
    assert checkpoint.state["learner"]["version"] == 5
    assert "actors" not in checkpoint.parts, "their unrolls are not complete"
    monkeypatch.undo()
    assert train(CONFIG, tmp_path, 1, resume=True).learner.version == 6


@pytest.mark.parametrize(
    ("update", "fields", "advised"),
    [(2, (), True), (2, ("policy_parameters",), True), (2, ("observation", "reward"), False), (1, (), False)],
)
def test_a_smaller_rate_is_not_advised_for_what_environments_return(
    update: int, fields: tuple[str, ...], advised: bool, tmp_path: Path
) -> None:
    """Nor for the first update, before which no rate has changed a weight."""
    trainer = Trainer(CONFIG, Run(tmp_path), local=True)
    trainer.saved = tmp_path / "checkpoint"
    error = NotFinite("loss = nan. Nothing changed.", update, fields).extended(" The batch is kept.")
    with pytest.raises(NotFinite, match="with: again") as caught, advising(trainer, lambda _: "again", print):
        raise error
    assert ("--learner.learning-rate" in str(caught.value)) == advised


def test_a_batch_that_is_not_finite_says_whose_fault_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error still says that the fields come from the environments after its batch was kept in a file."""
    next_batch = LocalFeed.next_batch

    def spoiled(feed: LocalFeed, version: int, last: bool = False) -> Any:
        batch = next_batch(feed, version, last)
        reward = batch.payload.reward * float("nan")
        return batch._replace(payload=batch.payload._replace(reward=reward))

    monkeypatch.setattr(LocalFeed, "next_batch", spoiled)
    with pytest.raises(NotFinite, match="The batch is kept in") as caught:
        train(CONFIG, tmp_path, 1)
    assert (caught.value.number, caught.value.from_environments) == (1, True)
    assert Run(tmp_path).not_finite_file(1).is_file()


def test_a_batch_that_cannot_be_kept_is_said_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk; the reason why the run ended stays."""
    monkeypatch.setattr(Run, "not_finite_file", lambda run, number: run.path / "missing" / "batch.safetensors")
    monkeypatch.setattr(Learner, "update", not_finite)
    with pytest.raises(NotFinite, match=r"update 1 is not finite.* The batch could not be kept\."):
        train(CONFIG, tmp_path, 1)


def test_a_trial_of_the_speed_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Trainer(CONFIG, Run(""), local=True).try_out() > 0
    monkeypatch.setattr(Learner, "update", not_finite)
    with pytest.raises(NotFinite, match=r"^update 1 is not finite$"):
        Trainer(CONFIG, Run(""), local=True).try_out()
    assert list(tmp_path.iterdir()) == []


def not_finite(learner: Learner, *batch: Any, **options: Any) -> Any:
    raise NotFinite("update 1 is not finite", 1)


def test_a_run_without_its_lock_is_saved_and_ends(tmp_path: Path) -> None:
    trainer = Trainer(CONFIG, Run(tmp_path), local=True)
    trainer.run.write_config(to_plain(trainer.config))

    def remove(progress: Any) -> None:
        if trainer.learner.version == 2:
            (tmp_path / ".lock").unlink()

    with trainer.run.lock(), pytest.raises(FileNotFoundError, match="the lock of the run was removed"):
        trainer.train(remove, lambda: trainer.learner.version > 5)
    assert trainer.learner.version == 2
    assert checkpoints.load_latest(tmp_path).step == trainer.step


def test_nothing_is_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run saves before its first update and, with this interval of 0 seconds, after each update."""
    steps: list[int] = []
    save = checkpoints.save

    def counted(place: Any, step: int, *rest: Any) -> Any:
        steps.append(step)
        return save(place, step, *rest)

    monkeypatch.setattr(checkpoints, "save", counted)
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0, log_every=2)
    first = train(config, tmp_path, 4)
    assert len(steps) == 5
    after_updates_2_and_4 = [steps[2], steps[4]]
    assert [row["step"] for row in read_metrics(tmp_path)] == after_updates_2_and_4
    assert steps == sorted(set(steps))

    again = train(config, tmp_path, 0, resume=True)
    assert len(steps) == 5
    assert again.saved == first.saved


# On a Ray cluster.

CROWDED = {
    "actors": dataclasses.replace(CONFIG, actors=dataclasses.replace(CONFIG.actors, cpus=100)),
    "learners": dataclasses.replace(CONFIG, learners=2, learner_labels=("for=no-node",)),
}
"""Runs for which the cluster has no room."""


@pytest.mark.ray
@pytest.mark.parametrize("lacking", CROWDED)
def test_ctrl_c_ends_a_run_that_waits_for_the_cluster(lacking: str, cluster: None, tmp_path: Path) -> None:
    trainer = Trainer(CROWDED[lacking], Run(tmp_path), local=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    with stop_on_signals() as stop:
        timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            trainer.train(lambda progress: None, lambda: stop.requested)
        finally:
            timer.cancel()
    assert stop.signal == signal.SIGINT
    assert checkpoints.load_latest(tmp_path).step == 0


@pytest.mark.ray
@pytest.mark.slow
def test_learners_that_cannot_be_replaced(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are killed once too often: the last weights are saved without them."""
    import ray

    monkeypatch.setattr("agent.failures.MAX_FAILURES", 0)
    start = Trainer.start_workers
    groups: list[Any] = []

    def watched(trainer: Trainer, *arguments: Any) -> None:
        start(trainer, *arguments)
        groups.append(trainer.updater)

    def kill() -> None:
        pids = ray.get([member.pid.remote() for member in groups[0].members])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Trainer, "start_workers", watched)
    actors = dataclasses.replace(CONFIG.actors, num_actors=1)
    config = dataclasses.replace(CONFIG, actors=actors, learners=2, checkpoint_seconds=1e9)
    with pytest.raises(RuntimeError, match="learners were lost 1 times in a row"):
        train(config, tmp_path, 3, then=kill, local=False)

    checkpoint = checkpoints.load_latest(tmp_path)
    learner = groups[0].learner
    assert checkpoint.state["learner"]["version"] == learner.version == 3
    assert checkpoint.step == learner.steps
    weights = learner.weights()
    assert all(weights[name].equal(weight) for name, weight in checkpoint.parts["weights"].items())


@pytest.mark.ray
@pytest.mark.slow
def test_each_unroll_is_learned_from_once_though_processes_die(cluster: None, tmp_path: Path) -> None:
    """Of two learners one is killed, and an actor; a batch is always ahead, and the agent is evaluated meanwhile."""
    import ray

    every = 2000
    config = dataclasses.replace(CONFIG, learners=2, unrolls_per_update=3, log_every=2, checkpoint_seconds=1e9)
    config = dataclasses.replace(config, evaluate_every=every, eval_episodes=2)
    trainer = SoakTrainer(config, Run(tmp_path), SoakOptions(learners=2))
    restarts: list[tuple[int, int]] = []

    def kill(process: Any) -> None:
        os.kill(ray.get(process.pid.remote()), signal.SIGKILL)

    def show(progress: Any) -> None:
        trainer.ledger.check_steps(trainer.learner.steps)
        pool = trainer.feed.pool
        restarts.append((trainer.updater.restarts, pool.status().restarts))
        if trainer.learner.version == 3:
            learner = trainer.updater.members[0]
            kill(getattr(learner, "handle", learner))
        elif trainer.learner.version == 6:
            actor = pool.members[0]
            kill(getattr(actor, "handle", actor))

    trainer.train(show, lambda: trainer.learner.version == 12)

    # The ledger has each unroll once.
    ledger = trainer.ledger
    assert len(ledger.seen) == 12 * 3
    assert (ledger.repeated, ledger.torn, ledger.wrong) == (0, 0, 0)
    assert restarts[-1] == (1, 1)
    assert ledger.fresh <= 1

    # Metrics agree with it.
    rows = read_metrics(tmp_path)
    assert not any(ledger.disagrees(row, trainer.action_repeat) for row in rows)
    measured = [row for row in rows if "evaluation/return" in row]
    assert [row["learner/frames"] // every for row in measured] == [1, 2]
    assert [row["evaluation/episodes"] for row in measured] == [2, 2]

    # So does the last checkpoint.
    checkpoint = checkpoints.load_latest(tmp_path)
    assert checkpoint.step == ledger.steps
    weights = trainer.learner.weights()
    assert all(weights[name].equal(weight) for name, weight in checkpoint.parts["weights"].items())


# Seeds of DeepMind Lab.

SMALL = "image_height=24,image_width=32,cache_gigabytes=0,processes=0"


def test_no_two_episodes_of_a_run_share_a_seed(lab: list[tuple[str, int, int]]) -> None:
    """Of actors that are replaced and resumed, of evaluations and of films."""
    config = RunConfig(
        env=f"dmlab:rooms_select_nonmatching_object,{SMALL}",
        agent=AGENT,
        actors=ActorsConfig(num_actors=3, envs_per_actor=3, unroll_length=30),
    )
    agent = make_agent(config)
    held_out = envs.held_out(config.env)
    lab.clear()

    def seeds(actors: Iterable[Any]) -> list[tuple[int, int]]:
        """(mixer seed, seed) of the episodes of an unroll of each actor."""
        for actor in actors:
            actor.unroll(30)
            actor.close()
        found = [(mixer, seed) for _, mixer, seed in lab]
        lab.clear()
        return found

    # Twelve actors of three environments, each of which begins more than eight episodes.
    numbers = itertools.product(range(2), range(3), range(2))
    trained = seeds(
        [make_actor(config, generation, actor_id, incarnation) for generation, actor_id, incarnation in numbers]
    )
    assert len(set(trained)) == len(trained) > 12 * 3 * 8
    mixers = {mixer for mixer, _ in trained}
    assert len(mixers) == 12
    assert min(mixers) >= TRAINING_MIXERS

    # Four evaluators.
    evaluators = itertools.product(range(2), (False, True))
    tested = seeds([make_evaluator(config, agent, 3, seed, True, held_out, film) for seed, film in evaluators])
    assert len(set(tested)) == len(tested) > 4 * 3 * 8
    assert {mixer for mixer, _ in tested} == {TEST_MIXER}
    by_name = seeds([make_evaluator(config, agent, 3, 0, True, config.env, False)])
    assert {mixer for mixer, _ in by_name} == {0}, "training levels played by name have their own seeds"

    # The run's seed decides.
    other = dataclasses.replace(config, seed=1)
    first = seeds([make_actor(config, 0, 0, 0)])
    second = seeds([make_actor(config, 0, 0, 0)])
    third = seeds([make_actor(other, 0, 0, 0)])
    assert first == second
    assert not set(first) & set(third)


def test_episode_streams_are_unique() -> None:
    """For 2048 generations of 4096 actors with 256 restarts: the lowest, the middle and the highest numbers of each."""
    some = [(0, 1, limit // 2, limit - 1) for limit in (2048, 4096, 256)]
    numbers = [episode_stream(*each) for each in itertools.product(*some)]
    assert len(set(numbers)) == 4**3
    assert (min(numbers), max(numbers)) == (0, 2**31 - 1)
    assert episode_stream(2048, 4096, 256) == 0


def test_a_resumed_run_whose_actors_begin_anew_has_new_episodes(tmp_path: Path) -> None:
    """They begin anew because there are more actors than before. Each resumption has episodes of its own."""
    more = dataclasses.replace(CONFIG, actors=dataclasses.replace(CONFIG.actors, num_actors=3))
    begun = [train(more, tmp_path / "fresh", 1)]

    train(CONFIG, tmp_path / "resumed", 1)
    begun.append(train(more, tmp_path / "resumed", 1, resume=True))

    train_in_parts(CONFIG, tmp_path / "again", (1, 1))
    begun.append(train(more, tmp_path / "again", 1, resume=True))

    assert [trainer.launches for trainer in begun] == [0, 1, 2]
    assert all(trainer.batch.payload.reset[:, 0].all() for trainer in begun)
    first_views = [trainer.batch.payload.observation[:, 0] for trainer in begun]
    assert not any(one.equal(other) for one, other in itertools.combinations(first_views, 2))


# Schedules.

LINEAR = dataclasses.replace(
    CONFIG.learner, learning_rate=0.01, learning_rate_schedule="linear", entropy_cost=0.02, entropy_cost_end=0.004
)
ARRANGEMENTS = {
    "local": {},
    "learners": {"learners": 2},
    "resident": {"resident": True, "learner": dataclasses.replace(LINEAR, device="cpu")},
    "resident learners": {"resident": True, "learners": 2},
}


def expected_rates(frames: float, end: int) -> list[float]:
    """Learning rate and entropy cost, of LINEAR, of the update after so many frames; the schedules have `end`."""
    share = min(1.0, frames / end)
    return [0.01 * (1 - share), 0.02 + share * (0.004 - 0.02)]


@pytest.mark.parametrize(("schedule_frames", "end"), [(None, 800), (400, 400), (3200, 3200)])
def test_schedules_last_as_many_frames_as_the_run(schedule_frames: int | None, end: int, tmp_path: Path) -> None:
    """Or as many as `schedule_frames` asks for."""
    config = dataclasses.replace(CONFIG, learner=LINEAR, frames=800, schedule_frames=schedule_frames, log_every=1)
    train(config, tmp_path)
    rows = read_metrics(tmp_path)
    assert len(rows) >= 5
    frames = 0.0
    for row in rows:
        assert [row["learning_rate"], row["entropy_cost"]] == pytest.approx(expected_rates(frames, end), abs=1e-12)
        frames = row["learner/frames"]
    assert frames >= 800


@pytest.mark.parametrize("changes", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_each_of_several_learners_has_the_schedules_of_the_run(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, frames=800, **{"learner": LINEAR, **changes})
    trainer = Trainer(config, Run(tmp_path), local=False)
    learner = trainer.learner
    if config.learners > 1:
        learner = trainer.make_replica()(Communicator(), "cpu")
    learner.steps = 50  # of four frames
    assert [learner.learning_rate, learner.entropy_cost] == pytest.approx(expected_rates(200, 800))


def test_a_resumed_run_says_how_its_learning_rate_jumps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And learns with the new rate, unless `schedule_frames` keeps the old end."""
    config = dataclasses.replace(CONFIG, learner=LINEAR, frames=320, log_every=1)
    ended = train(config, tmp_path)
    assert train(config, tmp_path, resume=True).learner.version == ended.learner.version
    assert caplog.messages == []

    # A longer run whose schedules end where they did.
    longer = dataclasses.replace(config, frames=640)
    kept = dataclasses.replace(longer, schedule_frames=320)
    trainer = Trainer(kept, Run(tmp_path), local=True)
    trainer.restore()
    assert caplog.messages == []
    assert [trainer.learner.learning_rate, trainer.learner.entropy_cost] == pytest.approx([0, 0.004])

    # A longer run whose schedules are as long as the run.
    trainer = Trainer(longer, Run(tmp_path), local=True)
    trainer.restore()
    rate, cost = expected_rates(ended.frames, 640)
    assert caplog.messages == [
        f"the learning rate changes from 0 to {rate:.3g} and the entropy cost changes from 0.004 to {cost:.3g}: "
        "schedules end at 640 frames now, not at 320; --schedule-frames 320 keeps the old end"
    ]
    assert [trainer.learner.learning_rate, trainer.learner.entropy_cost] == pytest.approx([rate, cost])

    # Another end of one schedule.
    caplog.clear()
    smaller = dataclasses.replace(kept, learner=dataclasses.replace(LINEAR, entropy_cost_end=0.001))
    Trainer(smaller, Run(tmp_path), local=True).restore()
    assert caplog.messages == ["the entropy cost changes from 0.004 to 0.001"]

    # Without schedules, their end is no reason for another rate.
    constant = dataclasses.replace(LINEAR, learning_rate_schedule="constant", entropy_cost_end=None)
    before = dataclasses.replace(config, learner=dataclasses.replace(constant, learning_rate=1e-3))
    after = dataclasses.replace(longer, learner=dataclasses.replace(constant, learning_rate=1e-2))
    assert describe_jump(before, after, 320) == "the learning rate changes from 0.001 to 0.01"


def test_environments_may_be_spread_from_a_resumption_on(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, env="diagnostic:recall,delay=3")
    train(config, tmp_path, 2)
    spread = dataclasses.replace(config, actors=dataclasses.replace(config.actors, stagger=True))
    assert train(spread, tmp_path, 2, resume=True).learner.version == 4
    assert train(config, tmp_path, 2, resume=True).learner.version == 6


@pytest.mark.parametrize("stagger", [False, True])
def test_environments_of_the_training_alone_are_spread(stagger: bool) -> None:
    """All episodes of this task are equally long. Unspread environments end them in the same steps."""
    task = "diagnostic:recall,delay=5"
    agent = AgentConfig(torso_size=4, core=LSTMConfig(4))
    config = RunConfig(env=task, agent=agent, actors=ActorsConfig(envs_per_actor=4, stagger=stagger))

    def in_step(actor: Any) -> bool:
        reset = actor.unroll(40).trajectory.reset
        actor.close()
        return bool((reset == reset[:1]).all())

    assert in_step(make_actor(config, 0, 0, 0)) == (not stagger)
    assert in_step(make_evaluator(config, make_agent(config), 4, 0, True, task, film=False))


@pytest.mark.parametrize(
    ("num_actors", "cpus", "cores", "sharing"),
    [
        (2, 1.0, 32, 2),  # of a run with few actors all
        (32, 4.0, 32, 8),  # of one on several machines as many as this one has room for
        (32, 0.5, 4, 8),
        (8, 4.0, 2, 1),
        (8, 0.0, 2, 8),
    ],
)
def test_actors_share_the_cores_of_their_own_machine(
    num_actors: int, cpus: float, cores: int, sharing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make(spec: str, num_envs: int, stream: int, actors: int) -> Any:
        made.append(actors)
        return envs.make_vector(spec, num_envs, stream)

    monkeypatch.setattr(factories, "make_vector", make)
    monkeypatch.setattr(factories, "cores", lambda: cores)
    actors = dataclasses.replace(CONFIG.actors, num_actors=num_actors, cpus=cpus)
    make_actor(dataclasses.replace(CONFIG, actors=actors, unrolls_per_update=1), 0, 0, 0)
    assert made == [sharing]
