"""The options of every command but `text` and `speech`. Nothing here imports torch, so that --help is fast."""

import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent.fields import AtLeast0, Checked, Count, Positive, Range
from commands.options import (
    AllowEnv,
    NewFolder,
    PlayOptions,
    RunFolder,
    TrainingOptions,
    parse,
    parse_training,
    user_errors,
)
from learner.files import is_url, require_schema
from training import UserError
from training.config import RunConfig, differences, from_plain, read_config, to_plain
from training.console import program
from training.presets import make_preset
from training.run import Run

FIXED = ("preset", "env", "seed", "agent.", "learner.optimizer", "checkpoint_url")
"""What a resumed run cannot change: its checkpoints depend on it, or are there."""
ON_RAY = tuple(f"actors.{name}" for name in ("in_flight", "threads", "cpus", "resources", "labels", "placement"))
ON_RAY += ("learner_placement", "learner_labels")
"""What has no effect in one process."""
Words = tuple[str, ...]
GRID = ("kind", "preset", "cores", "rates", "vary", "seeds")
"""Options that define a sweep."""


@dataclass(frozen=True)
class LaunchOptions(RunConfig, TrainingOptions):
    """Trains an agent with IMPALA on this machine or a Ray cluster; then evaluates it and films two episodes.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.
    Numbers of frames and steps may be written as 6M, 200k or 1e6.

      compressive launch                                    a small level on two CPU cores, under 10 minutes
      compressive launch --core lstm --seed 1               the same with another memory
      compressive launch --resume runs/NAME                 resume a run
      compressive launch --resume s3://bucket/run           the same, if its folder is lost
      compressive launch --actors 4..16                     4 actors, and up to 16 as the cluster has room for them
      compressive launch --learners 2                       two learners, each with half of every batch
      compressive launch --preset paper                     section 5.7 of the paper, on DeepMind Lab
      compressive launch --preset paper --env rooms:full    the same on the re-created level
      compressive launch --preset dmlab30                   the same agent on the thirty levels of DMLab-30
      compressive launch --preset paper --core lstm --help  the defaults of that preset and core
    """

    core: str = "compressive"
    """Recurrent core: compressive, transformer-xl, gated-transformer-xl, lstm, gru, mingru or memoryless."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR|URL")] = None
    """Resume the run in this folder, from its last readable checkpoint and with its own configuration.
    Agent, environment and seed stay as they are; --frames and most other values may be changed.
    With the URL of its checkpoints instead, the run gets a new folder (--run)."""
    local: bool = False
    """Act and learn in this one process, without Ray: slower, deterministic, and exactly resumable."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address instead of starting one on this machine."""
    allow_env: AllowEnv = None
    """With --resume: run the code of this environment, such as dm:my_module:Env, if the run names it."""
    skip_missing_levels: bool = False
    """Of several levels of DeepMind Lab, train on those that can be played here; else a missing one is an error."""

    @property
    def new_folder(self) -> bool:
        """Whether the run has no folder yet."""
        return self.resume is None or is_url(self.resume)

    @property
    def config(self) -> RunConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        return self.config_of(RunConfig)

    def again(self, run: Path | str) -> str:
        """The command that resumes a run."""
        where = " --local" if self.local else ""
        if self.ray_address:
            where = f" --ray-address {shlex.quote(self.ray_address)}"
        return f"{program()} launch --resume {shlex.quote(str(run))}{where}{permissions(self.env)}"


def permissions(*envs: str) -> str:
    """The words behind a command that allow environments with code of the user's own; empty if there are none."""
    from envs import foreign_code  # here, because it imports the environments

    names = ",".join(dict.fromkeys(name for env in envs for name in foreign_code(env)))
    return f" --allow-env {shlex.quote(names)}" if names else ""


def parse_launch(arguments: Sequence[str]) -> LaunchOptions:
    """The options, with the defaults of the preset and core, or of the resumed run.

    Raises:
        UserError: if a value is impossible.
    """
    arguments = list(_actors(arguments))
    options: LaunchOptions = parse_training(LaunchOptions, "compressive launch", arguments, make_preset, FIXED, _read)
    if options.run and not options.new_folder:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.local and options.ray_address:
        raise UserError("--local acts in this process and --ray-address on a cluster: give only one of them")
    if options.local and options.actors.max_actors is not None:
        raise UserError(f"--local acts in this process: expected one number of actors, got {options.actors.count}")
    if options.local and options.learners > 1:
        raise UserError(f"--local learns in this process: expected --learners 1, got {options.learners}")
    with user_errors():
        base = _read(options.resume) if options.resume else make_preset(options.preset, options.core)
    for name, _, new in differences(to_plain(base), to_plain(options.config)):
        if options.local and name in ON_RAY:
            raise UserError(f"--local acts in this process, without a cluster: {name} has no effect there, got {new}")
    if options.resume:
        from envs import require_consent

        typed = any(word.partition("=")[0] == "--env" for word in arguments)
        with user_errors():
            require_consent(base.env, options.allow_env, options.env if typed else None)
    return options


def _actors(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with `--actors 4` or `--actors 4..16` written out.

    Raises:
        UserError: if it is neither.
    """
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--actors":
            yield word
            continue
        value = value if equals else next(words, "")
        numbers = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
        if not numbers:
            raise UserError(f"actors: expected a number, or two as in 4..16, got {value!r}")
        yield from ("--actors.num-actors", numbers[1], "--actors.max-actors", numbers[2] or "None")


def _read(run: str) -> RunConfig:
    """The configuration of a run, given by its folder or by the URL of its checkpoints."""
    if not is_url(run):
        return read_config(Run(run))
    from learner.checkpoints import load_latest

    checkpoint = load_latest(run)
    try:
        require_schema(checkpoint.state, {"config": dict}, "state")
        return from_plain(RunConfig, {**checkpoint.state["config"], "checkpoint_url": run})
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error


@dataclass(frozen=True)
class EvaluateOptions(PlayOptions):
    """Plays episodes with the agents of runs and reports their scores with 95 % bootstrap intervals.

    compressive evaluate runs/NAME                              the agent of a run
    compressive evaluate runs/A runs/B --greedy                 several agents, in one table
    compressive evaluate --policy oracle --env rooms:full       what can be reached there, or by chance (random)
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DIR [DIR ...]]")] = ()
    """Folders of runs, as `compressive launch` created them; the last readable checkpoint of each is used."""
    policy: Literal["agent", "oracle", "random"] = "agent"
    """Who plays: the agents of the runs, or in an environment (--env) without any run an oracle that reads its state,
    or uniform random actions."""
    episodes: Positive = 128
    """Episodes of each task, rounded up to a multiple of the environments that are played together (up to 64)."""
    greedy: bool = False
    """Take the most probable action rather than a sample of the policy."""
    seed: Count = 0
    """Seed of the episodes; never shared with training."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Another environment than the run's own (in DeepMind Lab: its test level), with the same observations and
    actions."""
    json: bool = False
    """Print JSON, a list with an object for each run, instead of a table."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also film two episodes, of the first task if there are several, to this MP4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy == "agent" and not self.runs:
            raise ValueError("expected DIR, the folder of a run, or --policy oracle or random with --env; got neither")
        if self.policy != "agent" and (self.runs or not self.env):
            got = f"the run {self.runs[0]}" if self.runs else "no --env"
            raise ValueError(f"policy: expected --env and no run for {self.policy}, got {got}")
        if self.video and len(self.runs) != 1:
            raise ValueError(f"video: expected one run to film, got {len(self.runs)}")


@dataclass(frozen=True)
class VisualizeOptions(PlayOptions):
    """Plays episodes of a trained agent and shows what it sees, does, expects and attends to: a video, and a page for
    the browser with every step, layer and head."""

    run: RunFolder
    """Folder of the run, as `compressive launch` created it; its last readable checkpoint is used."""
    episodes: Positive = 2
    """Episodes to play; if there are several tasks, of the first."""
    greedy: bool = False
    """Take the most probable action instead of a sample of the policy."""
    seed: Count = 0
    """Seed of the episodes; never shared with training."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for episodes.mp4 and episodes.html; if not given, the run's videos."""


@dataclass(frozen=True)
class ReportOptions(PlayOptions):
    """Writes one page about a run: configuration, curves, throughput, compression loss by layer, attention by bucket of
    memory, evaluation and video."""

    run: RunFolder
    """Folder of the run, of any kind; it may still be training."""
    episodes: Count = 8
    """Episodes to play for the attention by bucket of memory; 0 for none. Only agents play."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The page; if not given, report.html in the run."""


@dataclass(frozen=True)
class StatusOptions(Checked):
    """Shows the progress of a run, its scores or losses, actors, policy lag and its last readable checkpoint."""

    run: RunFolder
    """Folder of the run, as `compressive launch`, `text train` or `speech train` created it."""


@dataclass(frozen=True)
class CompareOptions(Checked):
    """Trains variants of an agent, or of a model of text or speech, with several seeds each, and compares them.

    As many runs are trained at a time as there is room for. All options of the command that trains one hold for every
    run (--frames, --env, --learner.discount, ...). The same command again resumes the sweep: finished runs are kept,
    the others are resumed from their last checkpoint.

      compressive compare --rates 1 2 4 --cores lstm transformer-xl     Figure 5 of the paper, with two baselines
      compressive compare --vary agent.core.compression mean max convolution
      compressive compare --cores gru lstm --vary learner.discount 0.9 0.99 --frames 1000000 --seeds 0 1
      compressive compare --kind speech --cores compressive transformer-xl lstm wavenet --seeds 0     section 5.6
      compressive compare --kind text --cores compressive lstm --corpus folder --path ~/books
      compressive compare --resume runs/compare-cpu                     resume the sweep in this folder
      compressive compare --from runs/A runs/B runs/C                   only compare finished runs
    """

    kind: Literal["launch", "text", "speech"] = "launch"
    """Which command trains a run: launch (agents), text train or speech train."""
    preset: str = "cpu"
    """Where all other defaults come from; see --help of the command that trains."""
    cores: Annotated[Words, tyro.conf.arg(metavar="CORE [CORE ...]")] = ()
    """Cores to compare; if not given, the compressive one."""
    rates: Annotated[Words, tyro.conf.arg(metavar="RATE [RATE ...]")] = ()
    """Compression rates of the compressive core."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[Words, ...]], tyro.conf.arg(metavar="FIELD VALUE [VALUE ...]")] = ()
    """Any other field of the configuration and its values; may be given several times, for all combinations. Fields
    of a core are varied for the cores that have them."""
    seeds: Annotated[tuple[Count, ...], tyro.conf.arg(metavar="SEED [SEED ...]")] = (0, 1, 2)
    """A run of each variant with each of these seeds."""
    folder: NewFolder = None
    """Where runs and the report go; by default runs/compare-PRESET (compare-KIND-PRESET), or runs/comparison."""
    resume: NewFolder = None
    """Resume the sweep in this folder."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="DIR [DIR ...]")] = ()
    """Train nothing: compare these finished runs, all of one kind."""
    threshold: float | None = None
    """A score; the report says when runs reach it. By default 75 % for normalised scores, and none for others."""
    cpus_per_trial: Annotated[float, Range(0, 1024.0, above=True)] = 1.0
    """CPUs, and threads of torch, of a run; as many are trained at a time as the machine or cluster has room for."""
    gpus_per_trial: AtLeast0 = 0.0
    """GPUs of a run, such as 0.25."""
    remote_actors: bool = False
    """Agents: each run has its actors in processes of their own, as with `launch` without --local, placed together
    with it; otherwise it acts and learns in one process."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address; all its nodes must share the folder."""
    allow_env: AllowEnv = None
    """With --from or --resume: run the code of this environment, such as dm:my_module:Env, if runs name it; several
    are joined by commas."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ValueError("seeds: expected numbers, got none")
        if self.resume and (self.folder or self.runs):
            raise ValueError("--resume names a folder, and so do --folder and --from: give only one of them")
        fields = [field for field in dataclasses.fields(self) if field.name in GRID]
        given = [f"--{field.name}" for field in fields if getattr(self, field.name) != field.default]
        if given and (self.resume or self.runs):
            raise ValueError(f"{self.source}, got {', '.join(given)}")

    @property
    def source(self) -> str:
        """What is expected with --resume or --from."""
        return "--from: expected finished runs as they are" if self.runs else "--resume: expected the sweep as it began"


def parse_compare(arguments: Sequence[str]) -> tuple[CompareOptions, list[str]]:
    """The options of `compare`, and the words that belong to the command that trains a run."""
    return parse(CompareOptions, "compressive compare", arguments, return_unknown_args=True)


PARSERS: dict[str, tuple[Any, Callable[[Sequence[str]], Any]]] = {
    "launch": (LaunchOptions, parse_launch),
    "compare": (CompareOptions, parse_compare),
    **{
        name: (kind, functools.partial(parse, kind, f"compressive {name}"))
        for name, kind in (
            ("evaluate", EvaluateOptions),
            ("visualize", VisualizeOptions),
            ("report", ReportOptions),
            ("status", StatusOptions),
        )
    },
}
"""Class of the options and function that reads them, by command."""
