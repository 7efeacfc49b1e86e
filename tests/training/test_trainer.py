"""An agent's training: interruption, policy lag, errors, checkpoints behind URLs, and seeds of its actors."""

import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from training.config import RunConfig
from training.evaluation import make_evaluator
from training.factories import episode_stream, make_actor, make_agent
from training.feeds import LocalFeed
from training.plain import to_plain
from training.signals import stop_on_signals
from training.trainer import Trainer

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
    """Trains to the end, or until `then` returns true; it is called once, after a number of updates."""
    trainer, count, stop = Trainer(config, Run(folder), local), itertools.count(1), list[Any]()
    if resume:
        trainer.restore()
    folder.mkdir(parents=True, exist_ok=True)
    trainer.run.write_config(to_plain(trainer.config))
    if updates == 0:
        stop.append(then())
    trainer.train(lambda progress: next(count) == updates and stop.append(then()), lambda: any(stop))
    return trainer


def timeless(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics without measured times."""
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
    for stops in ((1, 7), (4, 3, 1)):
        folder = tmp_path / f"stopped after {stops[0]}"
        for part, updates in enumerate(stops):
            stopped = train(config, folder, updates, resume=part > 0)
        assert stopped.learner.version == straight.learner.version == 8
        assert state(folder) == state(tmp_path / "straight")
        assert stopped.episodes == straight.episodes > 0
        assert stopped.curriculum.recent == straight.curriculum.recent
        assert timeless(folder) == timeless(tmp_path / "straight")
    actors = dataclasses.replace(config.actors, num_actors=3, envs_per_actor=4)
    Run(folder).evaluation_file().write_text("{}")
    after = train(dataclasses.replace(config, actors=actors), folder, 3, resume=True)
    assert after.learner.version == 11, "another number of actors begins new episodes"
    assert [path.name for path in folder.glob("evaluation*")] == [f"evaluation-at-{stopped.step}.json"]


def test_evaluations_change_nothing_and_resume_exactly(tmp_path: Path) -> None:
    """Updates have almost 160 frames, so every second one is followed by an evaluation, and has a row of metrics."""
    config = dataclasses.replace(CONFIG, log_every=3, eval_episodes=2)
    measuring = dataclasses.replace(config, evaluate_every=300)
    train(config, tmp_path / "without", 8)
    train(measuring, tmp_path / "straight", 8)
    for part, updates in enumerate((3, 1, 4)):
        train(measuring, tmp_path / "stopped", updates, resume=part > 0)
    assert state(tmp_path / "stopped") == state(tmp_path / "straight") == state(tmp_path / "without")
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "straight")
    rows = read_metrics(tmp_path / "straight")
    measured = [row for row in rows if "evaluation/return" in row]
    assert [row["learner/frames"] // 300 for row in measured] == [1, 2, 3, 4]
    assert len(rows) == 5, "and one after update 3; that of update 6 is among them"
    for row in measured:
        assert row["evaluation/return_low"] <= row["evaluation/return"] <= row["evaluation/return_high"]
        assert row["evaluation/episodes"] == 2
    assert len(read_launches(Run(tmp_path / "stopped"))) == 3


@pytest.mark.parametrize(("limit", "dropped"), [(None, 0), (3, 0), (2, 3)])
def test_only_unrolls_older_than_the_limit_are_dropped(
    limit: int | None, dropped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third unroll says that it is three versions old."""
    get, versions = LocalPool.get, list[int]()

    def sometimes_late(pool: LocalPool, *_: Any) -> Unroll:
        unroll = get(pool)
        versions.append(int(unroll.trajectory.version[0]) - 3 * (len(versions) % 3 == 2))
        late = unroll.trajectory._replace(version=unroll.trajectory.version * 0 + versions[-1])
        return Unroll(late, [Episode(1.0, 30, 0, 0, 0, {})], versions[-1], unroll.rows)

    monkeypatch.setattr(LocalPool, "get", sometimes_late)
    trainer = train(dataclasses.replace(CONFIG, max_policy_lag=limit, log_every=1), tmp_path, 8)
    rows = read_metrics(tmp_path)
    assert trainer.learner.version == 8
    assert len(versions) == 8 + dropped
    assert rows[-1]["actors/unrolls_dropped"] == dropped
    assert max(row["policy_lag/max"] for row in rows) == (0 if dropped else 3)
    assert trainer.episodes == len(versions), "episodes of dropped unrolls count"

    # The count goes on when the run does: the next unroll is late again.
    again = train(dataclasses.replace(CONFIG, max_policy_lag=limit, log_every=1), tmp_path, 1, resume=True)
    assert again.dropped == (dropped + 1 if dropped else 0)


@pytest.mark.parametrize(("owner", "method"), [(LocalPool, "get"), (Learner, "update"), (LocalPool, "publish")])
def test_errors_do_not_lose_what_was_learned(
    owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, calls = getattr(owner, method), itertools.count(1)

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
    ("fields", "advised"), [((), True), (("policy_parameters",), True), (("observation", "reward"), False)]
)
def test_a_smaller_rate_is_not_advised_for_what_environments_return(
    fields: tuple[str, ...], advised: bool, tmp_path: Path
) -> None:
    trainer = Trainer(CONFIG, Run(tmp_path), local=True)
    trainer.saved = tmp_path / "checkpoint"
    error = NotFinite("loss = nan. Nothing changed.", 1, fields).extended(" The batch is kept.")
    with pytest.raises(NotFinite, match="with: again") as caught, trainer.advising(lambda _: "again", print):
        raise error
    assert ("--learner.learning-rate" in str(caught.value)) == advised


def test_a_batch_that_is_not_finite_says_whose_fault_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fields are known to who advises, also after the batch was kept in a file."""
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


def test_nothing_is_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, save = list[int](), checkpoints.save

    def counted(place: Any, step: int, *rest: Any) -> Any:
        steps.append(step)
        return save(place, step, *rest)

    monkeypatch.setattr(checkpoints, "save", counted)
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0, log_every=2)
    first = train(config, tmp_path, 4)
    assert len(steps) == 5
    assert [row["step"] for row in read_metrics(tmp_path)] == steps[2::2]
    assert steps == sorted(set(steps))
    again = train(config, tmp_path, 0, resume=True)
    assert len(steps) == 5
    assert again.saved == first.saved


def test_the_last_of_two_runs_owns_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    config = dataclasses.replace(CONFIG, checkpoint_url=url)
    first, second = (Trainer(config, Run(tmp_path / name), local=True) for name in ("first", "second"))
    first.claim_url(new=True)
    first.train(lambda progress: None, lambda: True)
    with pytest.raises(ValueError, match=f"{url} already has checkpoints: expected a new URL, or --resume {url}"):
        second.claim_url(new=True)
    first.save()

    second.claim_url(new=False)
    second.restore()
    with pytest.raises(UserError, match=rf"taken over by {second.run} on .*; this run ends with {first.saved}"):
        first.save()
    assert checkpoints.load_latest(url).path == first.saved, "the first wrote after it was displaced"
    second.save()
    assert checkpoints.load_latest(url).path == second.saved != first.saved


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
    groups, start = list[Any](), Trainer.start_workers

    def watched(trainer: Trainer, *arguments: Any) -> None:
        start(trainer, *arguments)
        groups.append(trainer.updater)

    def kill() -> None:
        for pid in ray.get([member.pid.remote() for member in groups[0].members]):
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Trainer, "start_workers", watched)
    actors = dataclasses.replace(CONFIG.actors, num_actors=1)
    config = dataclasses.replace(CONFIG, actors=actors, learners=2, checkpoint_seconds=1e9)
    with pytest.raises(RuntimeError, match="learners were lost 1 times in a row"):
        train(config, tmp_path, 3, then=kill, local=False)
    checkpoint, learner = checkpoints.load_latest(tmp_path), groups[0].learner
    assert checkpoint.state["learner"]["version"] == learner.version == 3
    assert checkpoint.step == learner.steps
    weights = learner.weights()
    assert all(weights[name].equal(weight) for name, weight in checkpoint.parts["weights"].items())


@pytest.mark.ray
@pytest.mark.slow
def test_each_unroll_is_learned_from_once_though_processes_die(cluster: None, tmp_path: Path) -> None:
    """By two learners, of which one is killed, and an actor; a batch is always ahead, and training is evaluated."""
    import ray

    config = dataclasses.replace(CONFIG, learners=2, unrolls_per_update=3, log_every=2, checkpoint_seconds=1e9)
    config = dataclasses.replace(config, evaluate_every=2000, eval_episodes=2)
    trainer, restarts = SoakTrainer(config, Run(tmp_path), SoakOptions(learners=2)), list[tuple[int, int]]()

    def show(progress: Any) -> None:
        trainer.ledger.check_steps(trainer.learner.steps)
        restarts.append((trainer.updater.restarts, trainer.feed.pool.status().restarts))
        victims = {3: trainer.updater, 6: trainer.feed.pool}.get(trainer.learner.version)
        if victims:
            member = victims.members[0]
            os.kill(ray.get(getattr(member, "handle", member).pid.remote()), signal.SIGKILL)

    trainer.train(show, lambda: trainer.learner.version == 12)
    ledger, rows = trainer.ledger, read_metrics(tmp_path)
    assert len(ledger.seen) == 12 * 3
    assert (ledger.repeated, ledger.torn, ledger.wrong) == (0, 0, 0)
    assert restarts[-1] == (1, 1)
    assert ledger.fresh <= 1
    assert not any(ledger.disagrees(row, trainer.action_repeat) for row in rows)
    measured = [row for row in rows if "evaluation/return" in row]
    assert [(row["learner/frames"] // 2000, row["evaluation/episodes"]) for row in measured] == [(1, 2), (2, 2)]
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
    agent, held_out = make_agent(config), envs.held_out(config.env)
    lab.clear()

    def seeds(*actors: Any) -> list[tuple[int, int]]:
        """(mixer seed, seed) of the episodes of an unroll of each actor."""
        for actor in actors:
            actor.unroll(30)
            actor.close()
        found = [pair[1:] for pair in lab]
        lab.clear()
        return found

    trained = seeds(*(make_actor(config, *numbers) for numbers in itertools.product(range(2), range(3), range(2))))
    assert len(set(trained)) == len(trained) > 12 * 3 * 8
    mixers = {mixer for mixer, _ in trained}
    assert len(mixers) == 12
    assert min(mixers) >= TRAINING_MIXERS
    evaluators = itertools.product(range(2), (False, True))
    tested = seeds(*(make_evaluator(config, agent, 3, seed, True, held_out, film) for seed, film in evaluators))
    assert len(set(tested)) == len(tested) > 4 * 3 * 8
    assert {mixer for mixer, _ in tested} == {TEST_MIXER}
    by_name = seeds(make_evaluator(config, agent, 3, 0, True, config.env, False))
    assert {mixer for mixer, _ in by_name} == {0}, "training levels played by name have their own seeds"

    other = dataclasses.replace(config, seed=1)
    first, second, third = (seeds(make_actor(each, 0, 0, 0)) for each in (config, config, other))
    assert first == second
    assert not set(first) & set(third)


def test_episode_streams_are_unique() -> None:
    some = [(0, 1, limit // 2, limit - 1) for limit in (2048, 4096, 256)]
    numbers = [episode_stream(*each) for each in itertools.product(*some)]
    assert len(set(numbers)) == 64
    assert (min(numbers), max(numbers)) == (0, 2**31 - 1)
    assert episode_stream(2048, 4096, 256) == 0


def test_a_resumed_run_whose_actors_begin_anew_has_new_episodes(tmp_path: Path) -> None:
    """Here because it has more actors than before; the same as those of no other resumption."""
    more = dataclasses.replace(CONFIG, actors=dataclasses.replace(CONFIG.actors, num_actors=3))
    begun = [train(more, tmp_path / "fresh", 1)]
    train(CONFIG, tmp_path / "resumed", 1)
    begun.append(train(more, tmp_path / "resumed", 1, resume=True))
    train(CONFIG, tmp_path / "again", 1)
    train(CONFIG, tmp_path / "again", 1, resume=True)
    begun.append(train(more, tmp_path / "again", 1, resume=True))
    assert [trainer.launches for trainer in begun] == [0, 1, 2]
    first = [trainer.batch.payload.observation[:, 0] for trainer in begun]
    assert all(trainer.batch.payload.reset[:, 0].all() for trainer in begun)
    assert not any(one.equal(other) for one, other in itertools.combinations(first, 2))


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
    """Learning rate and entropy cost of the update after so many frames, of which the schedules have `end`."""
    share = min(1.0, frames / end)
    return [0.01 * (1 - share), 0.02 + share * (0.004 - 0.02)]


@pytest.mark.parametrize(("schedule_frames", "end"), [(None, 800), (400, 400), (3200, 3200)])
def test_schedules_last_as_many_frames_as_the_run(schedule_frames: int | None, end: int, tmp_path: Path) -> None:
    """Or as is asked for. A step has four frames."""
    config = dataclasses.replace(CONFIG, learner=LINEAR, frames=800, schedule_frames=schedule_frames, log_every=1)
    train(config, tmp_path)
    rows, frames = read_metrics(tmp_path), 0.0
    assert len(rows) >= 5
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
    learner.steps = 50
    assert [learner.learning_rate, learner.entropy_cost] == pytest.approx(expected_rates(200, 800))


def test_a_resumed_run_says_how_its_learning_rate_jumps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And learns with it, unless the schedules are asked to end where they did."""
    config = dataclasses.replace(CONFIG, learner=LINEAR, frames=320, log_every=1)
    ended = train(config, tmp_path)
    assert train(config, tmp_path, resume=True).learner.version == ended.learner.version
    assert caplog.messages == []

    longer = dataclasses.replace(config, frames=640)
    kept = dataclasses.replace(longer, schedule_frames=320)
    trainer = Trainer(kept, Run(tmp_path), local=True)
    trainer.restore()
    assert caplog.messages == []
    assert [trainer.learner.learning_rate, trainer.learner.entropy_cost] == pytest.approx([0, 0.004])

    trainer = Trainer(longer, Run(tmp_path), local=True)
    trainer.restore()
    rate, cost = expected_rates(ended.frames, 640)
    assert caplog.messages == [
        f"the learning rate changes from 0 to {rate:.3g} and the entropy cost changes from 0.004 to {cost:.3g}: "
        "schedules end at 640 frames now, not at 320; --schedule-frames 320 keeps the old end"
    ]
    assert [trainer.learner.learning_rate, trainer.learner.entropy_cost] == pytest.approx([rate, cost])

    caplog.clear()
    smaller = dataclasses.replace(kept, learner=dataclasses.replace(LINEAR, entropy_cost_end=0.001))
    Trainer(smaller, Run(tmp_path), local=True).restore()
    assert caplog.messages == ["the entropy cost changes from 0.004 to 0.001"]
