"""Stages: what ends one, what continues in the next, and exact resumption."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from actors import Episode
from agent.popart import PopArt
from learner.config import LearnerConfig
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import state
from tests.training.test_trainer import CONFIG, timeless, train, train_in_parts
from training import curriculum
from training.config import RunConfig
from training.curriculum import STAGES, Curriculum
from training.factories import episode_stream
from training.presets import level
from training.stages import read_stage
from training.trainer import Trainer

STAGED = dataclasses.replace(
    CONFIG,
    stages=("rooms:small,episode_frames=40 until frames 250", "rooms:small,episode_frames=80 until return -100"),
    log_every=1,
)
"""An update has up to 160 frames; the second stage ends with its fourth episode (see `few`)."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four episodes are enough to decide whether a stage has ended."""
    monkeypatch.setattr(curriculum, "EPISODES", 4)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("rooms:small until correct 0.9", {"correct": 0.9}),
        ("rooms:small until return -3.5 or frames 2M", {"return": -3.5, "frames": 2e6}),
        ("rooms:small  until frames 1e6", {"frames": 1e6}),
        ("rooms:small until success 0.5 or return 3", {"success": 0.5, "return": 3.0}),
    ],
)
def test_stages_as_they_are_written(text: str, limits: dict[str, float]) -> None:
    assert read_stage(text) == ("rooms:small", limits)


@pytest.mark.parametrize(
    "text", ["rooms:small", "rooms:small until 0.9", "until correct 0.9", "rooms:small until correct 0.9 or", "a until"]
)
def test_other_texts_are_no_stages(text: str) -> None:
    with pytest.raises(ValueError, match=r"^stages: expected 'ENV until CONDITION', .*, got '.*'$"):
        RunConfig(stages=(text,))


@pytest.mark.parametrize("limit", ["correct 90", "correct 0", "frames 0", "frames 1e999", "return -1e999"])
def test_impossible_limits(limit: str) -> None:
    expected = r"a share of correct choices in \(0, 1\] and frames above 0"
    with pytest.raises(ValueError, match=f"^stages: expected {expected}"):
        RunConfig(stages=(f"rooms:small until {limit}",))


def test_the_level_says_when_its_stages_end_at_the_latest() -> None:
    config = level()
    most = sum(read_stage(stage).limits["frames"] for stage in config.stages)
    assert level.__doc__
    assert f"at the latest after {most / 1e6:.0f} of {config.frames / 1e6:.0f} M frames" in level.__doc__


def episodes(count: int, right: float = 0, wrong: float = 0, score: float = 0.0, task: str = "") -> list[Episode]:
    """Equal episodes, with these numbers of right and wrong choices in each."""
    metrics = {"correct_choices": right, "wrong_choices": wrong}
    episode = Episode(score, steps=30, environment=0, actor_id=0, version=0, metrics=metrics, task=task)
    return [episode] * count


def test_what_ends_a_stage() -> None:
    """Shares and returns are of the last 200 episodes; a step has four frames."""
    limits = "correct 0.75 or return 10 or frames 400"
    found = Curriculum(dataclasses.replace(CONFIG, stages=(f"rooms:small until {limits}",)))
    assert not found.ended(99)
    assert found.ended(100), "400 frames"

    # A share of 0.75 of correct choices, of 200 episodes.
    found.remember(episodes(199, right=3, wrong=1))
    assert not found.ended(0), "too few episodes"
    found.remember(episodes(1, right=2, wrong=2))
    assert not found.ended(0)
    found.remember(episodes(1, right=4))
    assert found.ended(0)

    # The stage begins anew at step 50.
    found.enter(0, 50)
    assert not found.ended(149), "frames and episodes of the stage alone"
    assert found.ended(150)
    found.remember(episodes(200, score=10.0))
    assert found.ended(50)

    found.enter(1, 150)
    found.remember(episodes(200, right=1, score=100.0))
    assert not found.ended(10**9), "the last stage has no end"


def test_the_first_episodes_of_many_environments_end_no_stage() -> None:
    """They are the short ones, which may be the good ones."""
    actors = dataclasses.replace(CONFIG.actors, num_actors=1, envs_per_actor=300)
    stages = ("rooms:small until return 10",)
    found = Curriculum(dataclasses.replace(CONFIG, stages=stages, actors=actors))
    found.remember(episodes(299, score=10.0))
    assert not found.ended(0), "fewer than one of each environment"
    resumed = Curriculum(found.config)
    resumed.unpack(found.pack())
    for each in (found, resumed):
        each.remember(episodes(1, score=10.0))
        assert each.ended(0)


def test_all_tasks_of_a_stage_need_their_episodes() -> None:
    steady = "rooms:small"
    pulsing = "rooms:small,glow_pulse=1"
    found = Curriculum(dataclasses.replace(CONFIG, stages=(f"{steady},{pulsing} until return 5",)))
    found.remember(episodes(200, score=20.0, task=steady))
    found.remember(episodes(199, score=0.0, task=pulsing))
    assert not found.ended(0)
    found.remember(episodes(1, score=0.0, task=pulsing))
    assert found.ended(0), "the mean over tasks is 10"


def test_scores_are_of_the_tasks_that_were_played() -> None:
    """One of two tasks has an episode, and then both."""
    early = "diagnostic:recall,delay=3"
    late = "diagnostic:recall,delay=4"
    actors = dataclasses.replace(CONFIG.actors, num_actors=2)
    found = Curriculum(dataclasses.replace(CONFIG, env=f"{early},{late}", actors=actors))
    assert found.texts() == ("no episode finished yet",)

    found.remember(episodes(1, score=7, task=late))
    assert found.scores() == {late: 7}
    assert found.texts() == ("return 7.00 over 1 of 2 tasks",)
    row = found.metrics()
    assert row["tasks/seen"] == 1
    assert row["tasks/count"] == 2
    assert row[f"{late}/return"] == 7
    assert f"{early}/return" not in row

    found.remember(episodes(1, score=2, task=early))
    assert found.mean_return() == found.metrics()["episode/return"] == 4.5


def test_a_run_goes_through_its_stages(few: None, tmp_path: Path) -> None:
    """A new stage has new actors, and all else continues, such as counters and metrics."""
    trainer = Trainer(STAGED, Run(tmp_path), local=True)
    seen: list[tuple[Any, ...]] = []

    def show(progress: Any) -> None:
        stage = progress.texts[3]
        tasks = {actor.task for actor in trainer.feed.pool.actors}
        seen.append((trainer.learner.version, stage, *tasks))

    trainer.train(show, lambda: trainer.learner.version == 8)
    assert seen == [
        (1, "stage 1 of 3", "rooms:small,episode_frames=40"),
        (2, "stage 1 of 3", "rooms:small,episode_frames=40"),
        (3, "stage 2 of 3", "rooms:small,episode_frames=80"),
        (4, "stage 2 of 3", "rooms:small,episode_frames=80"),
        (5, "stage 3 of 3", "rooms:small,episode_frames=120"),
        (6, "stage 3 of 3", "rooms:small,episode_frames=120"),
        (7, "stage 3 of 3", "rooms:small,episode_frames=120"),
        (8, "stage 3 of 3", "rooms:small,episode_frames=120"),
    ]
    rows = read_metrics(tmp_path)
    assert [row["stage"] for row in rows] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert [row["learner/frames"] for row in rows] == sorted({row["learner/frames"] for row in rows})
    assert rows[-1]["episode/count"] > len(trainer.curriculum.recent["rooms:small,episode_frames=120"]) > 0
    assert checkpoints.load_latest(tmp_path).state["stage"]["number"] == 2


def test_frames_end_each_of_several_stages(tmp_path: Path) -> None:
    """Only frames of the stage count, also if the run is resumed within it. An update has 140 to 160 frames."""
    stages = ("rooms:small,episode_frames=40 until frames 250", "rooms:small,episode_frames=80 until frames 400")
    config = dataclasses.replace(STAGED, stages=stages)
    parts = train_in_parts(config, tmp_path, (3, 1, 3))
    assert [trainer.launches for trainer in parts] == [0, 1, 0], "resumptions of the present stage"

    rows = read_metrics(tmp_path)
    assert [row["stage"] for row in rows] == [1, 1, 2, 2, 2, 3, 3]
    frames = [row["learner/frames"] for row in rows]
    begin_of_second = frames[1]
    assert frames[0] < 250 <= frames[1]
    assert frames[3] - begin_of_second < 400 <= frames[4] - begin_of_second
    begin_of_third = frames[4]
    frames_per_step = 4
    assert checkpoints.load_latest(tmp_path).state["stage"]["begin"] * frames_per_step == begin_of_third


def test_stopping_anywhere_in_the_stages_changes_nothing(few: None, tmp_path: Path) -> None:
    """Also between the update that ends a stage and the next, and more than once in a stage."""
    train(STAGED, tmp_path / "straight", 8)
    for parts in ((1, 1, 1, 1, 4), (2, 6), (3, 2, 3), (8,)):
        folder = tmp_path / "-".join(map(str, parts))
        train_in_parts(STAGED, folder, parts)
        assert state(folder) == state(tmp_path / "straight")
        assert timeless(folder) == timeless(tmp_path / "straight")


def test_actors_of_stages_are_seeded_apart(few: None, tmp_path: Path) -> None:
    """The same environment in two stages has other episodes in each; `hud=False` is the default of rooms:small."""
    config = dataclasses.replace(STAGED, stages=(f"{CONFIG.env},hud=False until frames 160",))
    trainer = Trainer(config, Run(tmp_path), local=True)
    first_views: list[torch.Tensor] = []

    def show(_: Any) -> None:
        first_views.append(trainer.batch.payload.observation[:, 0].clone())

    trainer.train(show, lambda: len(first_views) == 2)
    assert trainer.curriculum.number == 1
    assert not torch.equal(first_views[0], first_views[1])


def test_no_stage_repeats_the_episodes_of_another() -> None:
    """Nor does a run that is resumed up to 63 times in each stage."""
    stages = tuple(f"{CONFIG.env} until frames {1 + number}" for number in range(31))
    many = dataclasses.replace(CONFIG, stages=stages)
    found = Curriculum(many)
    assert len(found.stages) == STAGES == 32

    generations: list[int] = []
    for number in range(STAGES):
        found.enter(number, 0)
        generations += [found.generation(launches) for launches in range(64)]
    assert len(set(generations)) == 32 * 64

    # The lowest and the highest numbers of actors and of restarts.
    streams: set[int] = set()
    for generation in generations:
        for actor in (0, 4095):
            for restarts in (0, 255):
                streams.add(episode_stream(generation, actor, restarts))
    assert len(streams) == 32 * 64 * 4
    assert (min(streams), max(streams)) == (0, 2**31 - 1)

    last = episode_stream(found.generation(64), 0, 0)
    assert last == episode_stream(found.generation(0), 0, 0), "a stage that is resumed more often repeats its own"
    with pytest.raises(ValueError, match="stages: expected at most 31, got 32"):
        Curriculum(dataclasses.replace(many, stages=(*many.stages, many.stages[0])))


def test_a_counter_of_the_environment_ends_a_stage() -> None:
    found = Curriculum(dataclasses.replace(CONFIG, stages=("rooms:small until wrong_choices 2 or frames 400",)))
    found.remember(episodes(199, right=9, wrong=3))
    assert not found.ended(0), "too few episodes"
    found.remember(episodes(1))
    assert found.ended(0), "a mean of 2.985"
    found.remember(episodes(70, wrong=0))
    assert not found.ended(0), "130 of 200 episodes have 3"
    assert found.ended(100), "400 frames"


def test_a_few_choices_end_no_stage() -> None:
    """The only choice of 200 episodes may be luck."""
    found = Curriculum(dataclasses.replace(CONFIG, stages=("rooms:small until correct 0.9",)))
    found.remember(episodes(199))
    found.remember(episodes(1, right=1))
    assert found.correct() == 1
    assert not found.ended(0)
    found.remember(episodes(98, right=1))
    assert not found.ended(0), "99 choices"
    found.remember(episodes(1, right=1))
    assert found.ended(0)


def test_a_counter_that_few_episodes_have_ends_no_stage() -> None:
    """Where a time limit cuts an episode its counters may be missing."""
    found = Curriculum(dataclasses.replace(CONFIG, stages=("rooms:small until wrong_choices 2",)))
    without = dataclasses.replace(episodes(1)[0], metrics={})
    found.remember([without] * 200)
    found.remember(episodes(99, wrong=2))
    assert not found.ended(0)
    found.remember(episodes(1, wrong=2))
    assert found.ended(0)


def test_what_is_not_counted_ends_no_stage() -> None:
    misspelled = dataclasses.replace(CONFIG, stages=("rooms:small until corect 0.9",))
    words = "one of correct, return, frames, correct_choices, wrong_choices in rooms:small, got 'corect'"
    with pytest.raises(ValueError, match=f"^stages: until: expected {words}"):
        Curriculum(misspelled)


def test_correct_choices_are_waited_for_only_where_they_are_counted() -> None:
    staged = dataclasses.replace(CONFIG, env="diagnostic:recall,delay=3")
    impossible = dataclasses.replace(staged, stages=("diagnostic:recall,delay=1 until correct 0.9 or frames 9",))
    expected = "expected an environment that counts correct_choices and wrong_choices, got diagnostic:recall,delay=1"
    with pytest.raises(ValueError, match=f"^stages: until correct: {expected}"):
        Curriculum(impossible)
    Curriculum(dataclasses.replace(staged, stages=("diagnostic:recall,delay=1 until return 0.9",)))


def test_conditions_may_change_in_a_resumed_run_but_not_its_present_stage(few: None, tmp_path: Path) -> None:
    train(STAGED, tmp_path, 3)
    first, second = STAGED.stages
    longer = dataclasses.replace(STAGED, stages=(first, second.replace("-100", "1000")))
    assert train(longer, tmp_path, 4, resume=True).curriculum.number == 1
    for stages in ((first,), (second, first), ()):
        message = r"does not fit .*: stages: expected number 2 to be 'rooms:small,epis.*80'"
        with pytest.raises(ValueError, match=message):
            train(dataclasses.replace(STAGED, stages=stages), tmp_path, 1, resume=True)


def test_checkpoints_without_a_stage_are_those_of_runs_without_stages(tmp_path: Path) -> None:
    train(CONFIG, tmp_path, 2)
    last = checkpoints.load_latest(tmp_path)
    del last.state["stage"]
    checkpoints.save(tmp_path, last.step, last.parts, last.state)
    assert train(CONFIG, tmp_path, 1, resume=True).learner.version == 3
    with pytest.raises(ValueError, match="stages: expected number 1 to be"):
        train(STAGED, tmp_path, 1, resume=True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("rooms:small,image_height=30", r"observations \[30, 32, 3\]"),
        ("rooms:small,action_repeat=2", "2 frames a step"),
        ("rooms:small,rooms:small,hud=False,rooms:small,glow_pulse=1", "expected at least 3 .--actors., one a task"),
    ],
)
def test_stages_that_do_not_fit(env: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Trainer(dataclasses.replace(CONFIG, stages=(f"{env} until frames 9",)), Run(""), local=True)


RECALL = dataclasses.replace(
    CONFIG,
    env="diagnostic:recall,delay=5",
    stages=("diagnostic:recall,delay=2 until frames 160",),
    learner=LearnerConfig(device="cpu"),
    log_every=1,
)


POPART = dataclasses.replace(
    RECALL, env="diagnostic:recall,delay=5,diagnostic:recall,delay=6", learner=LearnerConfig(device="cpu", popart=True)
)
"""Two actors; the first stage has one task and the last two."""


def test_popart_has_the_tasks_of_the_last_environment_in_all_stages(tmp_path: Path) -> None:
    """Actors take turns, and each moves the statistics of its own column: four and three of seven updates."""
    trainer = train(POPART, tmp_path / "straight", 7)
    assert {row["stage"] for row in read_metrics(tmp_path / "straight")} == {1, 2}
    assert isinstance(trainer.agent.value, PopArt)
    assert trainer.agent.value.batches.tolist() == [4, 3]
    train_in_parts(POPART, tmp_path / "stopped", (1, 1, 5))
    assert state(tmp_path / "stopped") == state(tmp_path / "straight")


def recall_tasks(count: int) -> str:
    """An environment of so many tasks."""
    return ",".join(f"diagnostic:recall,delay={1 + task}" for task in range(count))


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize(
    ("last", "stage", "fits"),
    [(3, 3, True), (3, 1, True), (4, 2, True), (3, 2, False), (1, 2, False), (2, 3, False)],
)
def test_numbers_of_tasks_that_do_not_fit_popart(
    last: int, stage: int, fits: bool, learners: int, tmp_path: Path
) -> None:
    """They are refused when the trainer is made. Resident runs have one task in any case."""
    actors = dataclasses.replace(CONFIG.actors, num_actors=4)
    stages = (f"{recall_tasks(stage)} until frames 9",)
    config = dataclasses.replace(POPART, env=recall_tasks(last), stages=stages, actors=actors, learners=learners)
    if fits:
        value = Trainer(config, Run(tmp_path), local=False).agent.value
        assert isinstance(value, PopArt)
        assert value.out_features == last
        return

    words = f"stages: expected a number of tasks that divides the {last} of --env, for learner.popart, got {stage}"
    with pytest.raises(ValueError, match=f"^{words} in diagnostic:recall,delay=1"):
        Trainer(config, Run(tmp_path), local=False)

    # Without PopArt, any number of tasks fits.
    without = dataclasses.replace(config, learner=LearnerConfig(device="cpu"))
    assert Trainer(without, Run(tmp_path), local=False).curriculum.number == 0


def test_stages_of_resident_runs(tmp_path: Path) -> None:
    config = dataclasses.replace(RECALL, resident=True)
    train(config, tmp_path / "straight", 4)
    assert {row["stage"] for row in read_metrics(tmp_path / "straight")} == {1, 2}
    train_in_parts(config, tmp_path / "stopped", (1, 3))
    assert state(tmp_path / "stopped") == state(tmp_path / "straight")

    # Each stage must be able to run on the learner's device.
    for env, words in (("diagnostic:tmaze", "expected .*rooms"), ("rooms:small,rooms:full", "expected one task .*2")):
        with pytest.raises(ValueError, match=words):
            Trainer(dataclasses.replace(config, stages=(f"{env} until frames 9",)), Run(""), local=True)


@pytest.mark.parametrize("resident", [False, True])
def test_actors_of_a_stage_begin_with_the_present_weights(resident: bool, tmp_path: Path) -> None:
    """They are new actors, and like all others they play each unroll with the weights of the update before it."""
    trainer = Trainer(dataclasses.replace(RECALL, resident=resident), Run(tmp_path), local=True)
    stages: list[int] = []
    played: list[set[int]] = []
    learned = [0]

    def show(_: Any) -> None:
        stages.append(trainer.curriculum.number)
        played.append(set(trainer.batch.payload.version.tolist()))
        learned.append(trainer.learner.version)

    trainer.train(show, lambda: stages.count(1) == 2)
    assert stages.count(0) > 0
    assert played == [{version} for version in learned[:-1]]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "changes",
    [
        {"env": POPART.env, "learner": POPART.learner},
        {"resident": True, "learners": 2},
        {"learners": 2, "env": POPART.env, "learner": POPART.learner},
    ],
)
def test_stages_on_ray(changes: dict[str, Any], cluster: None, tmp_path: Path) -> None:
    """With PopArt for more tasks than the first stage has, with learners that act, and in a resumed run."""
    config = dataclasses.replace(RECALL, frames=600, **changes)
    trainer = train(config, tmp_path, local=False)
    stages = [row["stage"] for row in read_metrics(tmp_path)]
    assert stages == sorted(stages)
    assert set(stages) == {1, 2}
    for task, recent in trainer.curriculum.recent.items():
        delay = int(task[-1])
        assert {episode.steps for episode in recent} == {delay + 1}, "of the last environment only"

    again = train(dataclasses.replace(config, frames=900), tmp_path, resume=True, local=False)
    assert again.curriculum.number == 1
    assert again.learner.version > trainer.learner.version
