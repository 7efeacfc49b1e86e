"""What a run learns one after the other: its stages, and the episodes of the present one."""

import dataclasses
import itertools
import math
from collections import deque

import numpy as np

from actors import Episode
from actors.evaluation import CHOICES, correct_fraction, counters_of
from envs import mean_normalized, tasks
from storage.files import Json, Schema, abbreviate, require_schema
from training.config import RunConfig
from training.factories import episode_metrics, interface
from training.progress import brief
from training.stages import MEASURES, Stage, read_stage

EPISODES = 200
"""Episodes of each task over which scores are means. A score ends no stage before there are as many."""
LEAST_SHARE = 0.5
"""So many choices, or episodes that have a counter, as a share of `EPISODES`, are needed before these end a stage. A
single choice may be luck, and where a time limit cuts an episode its counters may be missing."""
STAGES = 32
"""Most environments of a run, the last one included."""
NUMBERS = dict.fromkeys(("steps", "environment", "actor_id", "version"), int)
EPISODE: dict[str, Schema] = {"score": float, **NUMBERS, "metrics": {str: float}, "task": str}
STAGE = {"number": int, "begin": int, "env": str}


class Curriculum:
    """The stages of a run, the last of which is its environment, and where the run is in them.

    Attributes:
        number: of the present stage, from 0.
        begin: agent steps that were learned from before it.
        recent: the last episodes of the stage by task.
        counted: how many episodes each task has had in the stage.

    Raises:
        ValueError: if there are too many stages; if the environments differ in observations, actions or frames a step,
            or have more tasks than there are actors; if a stage waits for what its environment does not count; or,
            with PopArt, if their numbers of tasks do not fit.
        ImportError: if one needs a package that is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.stages = [*map(read_stage, config.stages), Stage(config.env, {})]
        if len(self.stages) > STAGES:
            raise ValueError(f"stages: expected at most {STAGES - 1}, got {len(config.stages)}")
        # One network plays all stages, so they need the same interface.
        num_actors = config.actors.num_actors
        last = interface(config.env)
        columns = len(tasks(config.env))  # of PopArt
        for env in config.environments:
            count = len(tasks(env))
            if num_actors < count:
                raise ValueError(f"actors: expected at least {count} (--actors), one a task of {env}, got {num_actors}")
            other = interface(env)
            if other != last:
                raise ValueError(f"stages: expected {last} as in {config.env}, got {other} in {env}")
            # Of n tasks, actor i plays number i modulo n. Its values are those of PopArt's column i modulo the number
            # of tasks of --env. Each column belongs to one task only if that number is a multiple of n.
            if config.learner.popart and columns % count:
                expected = f"a number of tasks that divides the {columns} of --env, for learner.popart"
                raise ValueError(f"stages: expected {expected}, got {count} in {env}")
        self._require_counters()
        self.action_repeat = last.action_repeat
        self.enter(0, 0)

    def _require_counters(self) -> None:
        """Raises a ValueError if a stage waits for what its environment does not count: that never comes true."""
        for stage in self.stages:
            counted = episode_metrics(stage.env)
            if "correct" in stage.limits and not set(CHOICES) <= counted:
                expected = f"an environment that counts {' and '.join(CHOICES)}"
                raise ValueError(f"stages: until correct: expected {expected}, got {stage.env}")
            for name in stage.counters:
                if name not in counted:
                    known = ", ".join([*MEASURES, *sorted(counted)])
                    raise ValueError(f"stages: until: expected one of {known} in {stage.env}, got {name!r}")

    def enter(self, number: int, begin: int) -> None:
        """Goes to a stage, which has had no episodes yet."""
        self.number = number
        self.begin = begin
        self.recent: dict[str, deque[Episode]] = {}
        for task in tasks(self.stages[number].env):
            self.recent[task] = deque(maxlen=EPISODES)
        self.counted = dict.fromkeys(self.recent, 0)

    @property
    def present(self) -> RunConfig:
        """The run's configuration with the environment of the present stage."""
        stage = self.stages[self.number]
        return dataclasses.replace(self.config, env=stage.env, stages=())

    def ended(self, steps: int) -> bool:
        """Whether the present stage has reached one of its limits after so many agent steps of the run."""
        # Scores are known once there are as many episodes of each task as they are means of.
        steps_of_stage = steps - self.begin
        measured = {"frames": float(steps_of_stage * self.action_repeat)}
        if min(self.counted.values()) >= self._needed:
            measured["return"] = self.mean_return()
            least = LEAST_SHARE * EPISODES
            if self._num_choices() >= least:
                measured["correct"] = self.correct()
            for name in self.stages[self.number].counters:
                values = self._values_of(name)
                if len(values) >= least:
                    measured[name] = float(np.mean(values))

        # One limit that is reached ends the stage.
        limits = self.stages[self.number].limits
        for name, value in measured.items():
            limit = limits.get(name, math.inf)
            if value >= limit:
                return True
        return False

    @property
    def _needed(self) -> int:
        """Episodes of each task before its scores may end the stage.

        At least as many as there are environments: the first episodes to end are the short ones.
        """
        actors = self.config.actors
        environments = actors.num_actors * actors.envs_per_actor / len(self.recent)
        return max(EPISODES, math.ceil(environments))

    def generation(self, launches: int) -> int:
        """What separates the episodes of stages and resumptions; see `factories.make_actor`.

        `launches` are those of the present stage before this one.
        """
        return STAGES * launches + self.number

    def remember(self, episodes: list[Episode]) -> None:
        """Keeps episodes by task; those without a task belong to the first."""
        # Environments of one task need not name it.
        first = next(iter(self.recent))
        for episode in episodes:
            task = episode.task or first
            self.recent[task].append(episode)
            self.counted[task] += 1

    def scores(self) -> dict[str, float]:
        """Mean return over the last episodes of each task that has had any."""
        scores = {}
        for task, episodes in self.recent.items():
            if episodes:
                mean = np.mean([episode.score for episode in episodes])
                scores[task] = float(mean)
        return scores

    def mean_return(self) -> float:
        """Mean over tasks of their scores; NaN without episodes."""
        scores = list(self.scores().values())
        if not scores:
            return math.nan
        return float(np.mean(scores))

    def correct(self) -> float:
        """Share of correct choices over the last episodes of all tasks; NaN without choices."""
        return correct_fraction(self._episodes())

    def _num_choices(self) -> float:
        """Number of choices, right or wrong, in the last episodes of all tasks."""
        return sum(episode.metrics.get(name, 0.0) for episode in self._episodes() for name in CHOICES)

    def _values_of(self, counter: str) -> list[float]:
        """A counter in those of the last episodes of all tasks that have it."""
        return [episode.metrics[counter] for episode in self._episodes() if counter in episode.metrics]

    def _episodes(self) -> list[Episode]:
        """The last episodes of all tasks."""
        return list(itertools.chain(*self.recent.values()))

    def texts(self) -> tuple[str, ...]:
        """Scores, and the stage if there are several, for a display."""
        texts = [self._described_scores()]
        if len(self.stages) > 1:
            texts.append(f"stage {self.number + 1} of {len(self.stages)}")
        return tuple(texts)

    def _described_scores(self) -> str:
        """Return and correct choices over all tasks, in words."""
        scores = self.scores()
        if not scores:
            return "no episode finished yet"
        text = f"return {brief(self.mean_return())}"
        if len(self.recent) > 1:
            text += f" over {len(scores)} of {len(self.recent)} tasks"
        correct = self.correct()
        if not math.isnan(correct):
            text += f"  correct {100 * correct:.1f} %"
        return text

    def metrics(self) -> dict[str, float]:
        """Scores over all tasks and of each, if there are several, and the stage from 1; what is unknown is NaN."""
        scores = self.scores()
        row = {"episode/return": self.mean_return(), "episode/correct_choices": self.correct()}
        lengths = [episode.steps for episode in self._episodes()]
        row["episode/length"] = float(np.mean(lengths)) if lengths else math.nan
        for name, value in mean_normalized(scores).items():
            row[f"episode/{name}"] = value
        for name, values in counters_of(self._episodes()).items():
            row[f"counter/{name}"] = float(values.mean())
        if len(self.recent) > 1:
            row |= self._metrics_by_task(scores)
        if len(self.stages) > 1:
            row["stage"] = self.number + 1.0
        return row

    def _metrics_by_task(self, scores: dict[str, float]) -> dict[str, float]:
        """The number of tasks, and the scores of each that has had an episode."""
        row = {"tasks/seen": float(len(scores)), "tasks/count": float(len(self.recent))}
        for task, score in scores.items():
            episodes = list(self.recent[task])
            row[f"{task}/return"] = score
            row[f"{task}/correct_choices"] = correct_fraction(episodes)
            normalized = mean_normalized({task: score})
            for name, value in normalized.items():
                row[f"{task}/{name}"] = value
        return row

    def pack(self) -> Json:
        """The state for a checkpoint, which JSON can hold."""
        recent = [dataclasses.asdict(episode) for episode in self._episodes()]
        stage = {
            "number": self.number,
            "begin": self.begin,
            "env": self.stages[self.number].env,
            "counted": dict(self.counted),
        }
        return {"recent": recent, "stage": stage}

    def unpack(self, state: Json) -> None:
        """Restores what `pack` returned; a state without a stage is that of a run without several.

        Raises a ValueError if the stage or an episode is not one of this run.
        """
        # The stage must be one of this run.
        stage = state.get("stage", {"number": 0, "begin": 0, "env": self.config.env})
        require_schema(stage, STAGE, "state: stage")
        number = stage["number"]
        own = "none"
        if 0 <= number < len(self.stages):
            own = self.stages[number].env
        if own != stage["env"]:
            raise ValueError(f"stages: expected number {number + 1} to be {abbreviate(stage['env'])}, got {own}")
        self.enter(number, stage["begin"])
        counted = stage.get("counted", {})
        require_schema(counted, {str: int}, "state: stage: counted")
        counted = {task: count for task, count in counted.items() if task in self.counted}

        # And so must the tasks of its episodes. A file may have more fields than are known here.
        episodes = []
        for fields in state["recent"]:
            known = {name: fields[name] for name in EPISODE}
            episode = Episode(**known)
            episodes.append(episode)
        tasks_played = {episode.task for episode in episodes}
        others = tasks_played - {"", *self.recent}
        if others:
            expected = ", ".join(self.recent)
            got = abbreviate(min(others))
            raise ValueError(f"state: recent: expected episodes of {expected}, got one of {got}")
        self.remember(episodes)
        self.counted |= counted
