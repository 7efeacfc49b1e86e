"""The configuration of an agent's run, and what the configurations of all kinds of runs have in common.

What each part means is documented beside what it configures (`agent`, `actors`, `learner`, `envs`). Presets are in
`presets.py`, the way into `config.json` and back in `plain.py`, and what a run may not name without permission in
`trust.py`.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from actors import ActorsConfig
from actors.config import pairs
from agent import AgentConfig
from agent.core import CORES, AgentCoreConfig, CustomCoreConfig
from agent.core.fields import AtLeast0, Checked, Count, Positive, Several
from learner.config import LearnerConfig, ReplayConfig, require_any_device
from storage.files import is_url, require_no_secret
from training.stages import read_stage


class Learning(Protocol):
    """What the training loop needs to know of the configuration of any learner."""

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate, before any schedule."""

    @property
    def device(self) -> str:
        """Where to learn: auto, cpu, cuda, cuda:1, ..."""


class Configuration(Protocol):
    """What the configuration of every kind of run has. It is a frozen dataclass.

    Attributes:
        kind: the kind of the run, a name in `storage.run.RUN_COMMANDS`.
        cores: the cores that such a run can have: the class of the configuration by the name of the core.
        core_field: where in the configuration that of the core is, such as "agent.core".
        score: the number that each evaluation of such a run has, by its name in `evaluation.json`.
        fixed: names of fields that a resumed run cannot change, because its checkpoints depend on them. "agent" stands
            for all fields of that group.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    kind: ClassVar[str]
    cores: ClassVar[Mapping[str, type[Checked]]]
    core_field: ClassVar[str]
    score: ClassVar[str]
    fixed: ClassVar[tuple[str, ...]]

    @property
    def preset(self) -> str:
        """The name of the preset from which all other defaults come."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def learners(self) -> int:
        """How many learners share each batch."""

    @property
    def checkpoint_seconds(self) -> float:
        """Time between two checkpoints."""

    @property
    def keep_checkpoints(self) -> int:
        """How many of the newest checkpoints are kept."""

    @property
    def keep_every(self) -> int:
        """Of each so many steps the first checkpoint is kept as well; 0 for none."""

    @property
    def learner(self) -> Learning:
        """The configuration of the learner."""

    @property
    def core_config(self) -> Checked:
        """The configuration of the core."""

    @property
    def goal(self) -> tuple[str, int]:
        """The metric that counts what a run has learned from, and its value at the end of the training."""


Config = TypeVar("Config", bound=Configuration)


@dataclass(frozen=True)
class RunConfig(Checked):
    """The training of an agent; `compressive launch` writes it, resolved, to the run's `config.json`."""

    kind: ClassVar[str] = "launch"
    cores: ClassVar[Mapping[str, type[Checked]]] = CORES
    core_field: ClassVar[str] = "agent.core"
    score: ClassVar[str] = "return.mean"
    fixed: ClassVar[tuple[str, ...]] = (
        "preset",
        "env",
        "from_run",
        "seed",
        "agent",
        "learner.optimizer",
        "learner.popart",
        "learner.teacher_cost",
        "checkpoint_url",
    )

    preset: str = "cpu"
    """Where all other defaults come from: cpu (a small level, two CPU cores), general (any other environment, chosen
    by itself for gym:, dm: and envpool:), level (the level itself, in stages), transfer (the same for the real level,
    with a teacher), memory (a task that asks for a longer memory, for `compare`), paper (section 5.7, DeepMind Lab),
    paper-recall (the same agent, where it needs memory for 192 steps), dmlab30 (on DMLab-30), minigrid-pixels
    (MiniGrid-Memory as CleanRL's ppo_trxl sees it) or popgym (POPGym)."""
    env: str = "rooms:small"
    """Environment: rooms:small, rooms:full (the level itself, re-created), dmlab:LEVEL (needs DeepMind Lab), gym:ID
    (any gymnasium id), dm:MODULE:CLASS (any dm_env.Environment), envpool:ID (EnvPool's), diagnostic:recall and
    other small tasks.
    Its fields are changed behind the name, as in rooms:full,hud=False. Several, joined by commas, are tasks that the
    actors share; dmlab:dmlab30 is the thirty of DMLab-30."""
    eval_env: str | None = None
    """Environment in which the agent is evaluated and filmed, with the same observations and actions, such as a longer
    task than that of the training; none: that of the training, and in DeepMind Lab its test levels."""
    stages: tuple[str, ...] = ()
    """Environments to learn before --env, in this order, each with the condition that ends it, as in 'rooms:small until
    correct 0.9': over the last 200 episodes correct SHARE (of choices), return SCORE or COUNTER MEAN (of the
    environment), or frames NUMBER; several are joined by "or". All need the observations, actions and frames a step
    that --env has. --stages alone: none."""
    from_run: str | None = None
    """Start with the weights of the last readable checkpoint of this run, whose network the new run has; everything
    else starts anew: the optimizer, all other options, --env too, which are those of the preset (but for
    actors.unroll_length, which has to fit the network), and values if a run has another number of tasks (with
    learner.popart). Observations and actions must be the same. With --like A --from-run B: the options of A and the
    weights of B, which must have the same network."""
    frames: Positive = 10_000_000
    """Environment frames to train for (agent steps times the action repeat)."""
    schedule_frames: Positive | None = None
    """Frames over which scheduled learning rates, entropy costs and the teacher's cost change; afterwards they stay.
    None for all frames of the run: if it is resumed with more, its learning rate is then higher than it ended with, and
    it says so."""
    seed: Count = 0
    """Seed of weights, environments and actions."""
    unrolls_per_update: Several = 1
    """Unrolls (of envs_per_actor rows each) in one batch."""
    rows_per_update: Several | None = None
    """Rows that an update learns from (a minibatch): a batch that has more, as with replay, is split into several
    updates. None for as many as a batch has new ones. Only for one learner, in the program's process."""
    resident: bool = False
    """Act on the learner's GPU: environments, network and unrolls never leave it, and all num_actors x envs_per_actor
    environments act together. For rooms and diagnostic:recall; needs the packages of the extra `gpu`."""
    learners: Several = 1
    """Learners, one a GPU or CPU, that share each batch by rows; 1 learns in the program's own process."""
    learner_placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How several learners are placed: on few nodes or on many, and, if strict, on exactly one or on one each."""
    learner_labels: tuple[str, ...] = ()
    """Labels that a learner's node must have, KEY=VALUE as `ray start` takes them."""
    max_policy_lag: Count | None = None
    """Unrolls whose weights are more versions old than this are dropped, and counted; None to learn from all."""
    log_every: Positive = 20
    """Updates between two rows of metrics."""
    checkpoint_seconds: AtLeast0 = 60.0
    """Time between two checkpoints; there is also one at the end or after Ctrl-C."""
    keep_checkpoints: Positive = 3
    """How many of the newest checkpoints are kept."""
    keep_every: Count = 0
    """Of each so many agent steps, the first checkpoint is kept as well; 0 for none."""
    checkpoint_url: str | None = None
    """Where checkpoints are written instead of the run's folder: any URL that fsspec knows, such as s3://bucket/run.
    It must not contain credentials, because it is written to files; set those in the environment (FSSPEC_S3_KEY)."""
    eval_episodes: Positive = 128
    """Episodes of each task in an evaluation, rounded up to a multiple of the environments that are played together."""
    eval_greedy: bool = False
    """Take the most probable actions in evaluations, rather than samples of the policy."""
    evaluate_every: Count = 0
    """Frames between two evaluations while training, which pauses for them; 0 for one at the end alone."""
    video_episodes: Count = 2
    """Episodes in the video at the end; 0 for none."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The network."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """The learner."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Learning from unrolls more than once; for one learner, not with `resident`."""
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    """The actors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs("learner_labels", self.learner_labels)
        self._check_url()
        self._check_teacher()
        self._check_unrolls()
        self._check_replay()
        self._check_learners()
        self._check_environments()
        if self.resident:
            self._check_resident_actors(self.environments)

    def _check_environments(self) -> None:
        """Stages and environments are written as they should be. Whether there are such environments is seen later."""
        from envs import tasks  # here, because it imports the spaces of all kinds of environments

        *before, env = self.environments
        named = [("env", env), *(("stages", each) for each in before)]
        if self.eval_env is not None:
            named.append(("eval_env", self.eval_env))
        for name, spec in named:
            try:
                tasks(spec)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error

    def _check_url(self) -> None:
        url = self.checkpoint_url
        if url is None:
            return
        try:
            require_no_secret(url)
        except ValueError as error:
            raise ValueError(f"checkpoint_url: {error}") from error
        # What is in this process's memory is lost with it.
        if not re.match(r"[a-z][a-z0-9+.-]*://.", url) or url.startswith("memory:"):
            expected = "a URL that outlives this process, such as s3://bucket/run or file:///mnt/run"
            raise ValueError(f"checkpoint_url: expected {expected}, got {url!r}")

    def _check_teacher(self) -> None:
        if self.learner.teacher_cost and self.from_run is None:
            raise ValueError("from_run: expected the teacher's run, because of learner.teacher_cost, got none")

    @property
    def _segment(self) -> int:
        """Steps in a segment of the core; 1 for cores that have none."""
        return getattr(self.core_config, "segment_size", 1)

    def _check_unrolls(self) -> None:
        """An unroll begins and ends with a segment of the core."""
        length = self.actors.unroll_length
        # So every state that reaches the learner has offset 0, and states of several actors make one batch.
        if length % self._segment:
            expected = f"a multiple of the core's segment_size = {self._segment}"
            raise ValueError(f"unroll_length: expected {expected}, got {length}")

    def _check_replay(self) -> None:
        length = self.actors.unroll_length
        burn_in = self.replay.burn_in
        if burn_in % self._segment or burn_in >= length:
            expected = f"less than unroll_length = {length} and a multiple of the core's segment_size = {self._segment}"
            raise ValueError(f"replay.burn_in: expected {expected}, got {burn_in}")
        if burn_in and self.learner.teacher_cost:
            # The steps of burn-in count in the teacher's losses, and neither agent remembers anything there.
            raise ValueError(f"replay.burn_in: expected 0 with a teacher (learner.teacher_cost), got {burn_in}")

        share = self.replay.share
        if share == 0:
            return
        # The buffer of unrolls is in the process of the only learner.
        if self.resident:
            raise ValueError(f"replay.share: expected 0 with resident actors, got {share}")
        if self.learners > 1:
            raise ValueError(f"replay.share: expected 0 with {self.learners} learners, got {share}")
        # A batch is drawn from unrolls that are in the buffer already: so many for each new one.
        replayed_for_each_new = share / (1 - share)
        rows = self.rows_of_batch
        if round(rows * replayed_for_each_new) == 0:
            expected = f"enough for one replayed row beside {rows} new ones in a batch"
            raise ValueError(f"replay.share: expected {expected}, got {share}")
        whole_number = math.ceil(round(replayed_for_each_new, 9))  # 4 at a share of 0.8, in spite of rounding
        least = self.unrolls_per_update * max(1, whole_number)
        if self.replay.unrolls < least:
            raise ValueError(f"replay.unrolls: expected at least {least} for this share, got {self.replay.unrolls}")

    def _check_learners(self) -> None:
        """Each learner has the same number of rows of a batch."""
        rows = self.rows_of_batch
        if rows % self.learners:
            expected = f"a divisor of the {rows} rows of a batch (unrolls_per_update x envs_per_actor)"
            raise ValueError(f"learners: expected {expected}, got {self.learners}")
        if self.rows_per_update is not None and (self.resident or self.learners > 1):
            kind = "resident actors" if self.resident else f"{self.learners} learners"
            raise ValueError(f"rows_per_update: expected none with {kind}, got {self.rows_per_update}")
        require_any_device(self.learner.device, self.learners)

    def _check_resident_actors(self, environments: tuple[str, ...]) -> None:
        """They act together in one task, and a batch has the unrolls of equally many of them."""
        from envs import tasks  # here, see `_check_environments`

        most_tasks = max(len(tasks(env)) for env in environments)
        if most_tasks > 1:
            raise ValueError(f"env: expected one task for resident actors, got {most_tasks}")
        if self.actors.max_actors is not None:
            raise ValueError(f"actors: expected one number for resident actors, got {self.actors.count}")
        if self.actors.num_actors % self.unrolls_per_update:
            expected = f"a multiple of unrolls_per_update = {self.unrolls_per_update} for resident actors"
            raise ValueError(f"num_actors: expected {expected}, got {self.actors.count}")
        # All environments act together, and their unrolls are learned from one update after the other.
        lag = self.actors.num_actors // self.unrolls_per_update - 1
        if self.max_policy_lag is not None and self.max_policy_lag < lag:
            expected = f"at least {lag}, the lag of {self.actors.count} resident actors"
            raise ValueError(f"max_policy_lag: expected {expected}, got {self.max_policy_lag}")

    @property
    def rows_of_batch(self) -> int:
        """New rows in one batch, without replayed ones."""
        return self.unrolls_per_update * self.actors.envs_per_actor

    @property
    def core_config(self) -> AgentCoreConfig:
        """The configuration of the core."""
        return self.agent.core

    @property
    def goal(self) -> tuple[str, int]:
        """See `Configuration`."""
        return "learner/frames", self.frames

    @property
    def schedule_end(self) -> int:
        """Frames after which learning rate, entropy cost and the teacher's cost stay."""
        return self.schedule_frames or self.frames

    @property
    def has_schedule(self) -> bool:
        """Whether the learning rate, the entropy cost or the teacher's cost changes in the run."""
        learner = self.learner
        ends = (learner.entropy_cost_end, learner.teacher_cost_end)
        return learner.learning_rate_schedule != "constant" or any(end is not None for end in ends)

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments of all stages; the last is `env`."""
        return (*(read_stage(stage).env for stage in self.stages), self.env)

    @property
    def named_environments(self) -> tuple[str, ...]:
        """All environments that the run makes; their code may be another person's."""
        if self.eval_env:
            return (*self.environments, self.eval_env)
        return self.environments

    def located(self, absolute: Callable[[str], str]) -> Self:
        """The same with an absolute path of the run to start from."""
        # A run is resumed from any working directory.
        if self.from_run is None or is_url(self.from_run):
            return self
        return dataclasses.replace(self, from_run=absolute(self.from_run))


def require_one_of(field: str, name: str, names: Collection[str]) -> None:
    """Raises a ValueError that lists the names if a name is not among them."""
    if name not in names:
        raise ValueError(f"{field}: expected one of {', '.join(names)}, got {name!r}")


def find_preset(
    presets: Mapping[str, Callable[[str], Config]], cores: Collection[str], preset: str, core: str
) -> Config:
    """A preset by name, with a core by name; raises a ValueError that lists the names if there is no such one."""
    require_one_of("preset", preset, presets)
    require_one_of("core", core, cores)
    make = presets[preset]
    return make(core)


def core_name(config: Configuration) -> str:
    """The name of a configuration's core in its table; of a custom core MODULE:CLASS."""
    core = config.core_config
    if isinstance(core, CustomCoreConfig):
        return core.name
    # By the class itself: some of them inherit from others.
    own = type(core)
    return next(name for name, kind in config.cores.items() if kind is own)
