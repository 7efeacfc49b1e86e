"""Options that several commands share; see `commands.options`. Nothing here imports torch."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from actors import ActorsConfig
from agent.core.fields import Above0, Checked, Count, Positive, Threads
from sequences.kinds import CONFIGS
from storage.errors import user_errors
from storage.files import is_url
from storage.run import absolute

PARTS = ("train", "evaluate", "sample")
"""What each kind of sequence model has as commands."""
Words = tuple[str, ...]
RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
NewFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
Allow = Annotated[str | None, tyro.conf.arg(metavar="ENV|URL")]


def words_of(options: Any, *names: str) -> str:
    """The words that give these options again, each behind a space; none for those with their default value."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    words = []
    for name in names:
        value = getattr(options, name)
        if value == defaults[name]:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is True:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [str(each).removesuffix(".0") if isinstance(each, float) else str(each) for each in values]
    return "".join(f" {shlex.quote(word)}" for word in words)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Checked):
    """What belongs to one launch of a training rather than to the run; with the preset, it decides other defaults."""

    preset: str = "cpu"
    core: str = "compressive"
    """Recurrent core; a wrong name lists those that exist."""
    run: NewFolder = None
    """Folder of the run, new or empty; if not given, a new one in runs/, named after date, time and core."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Resume the run in this folder from its last readable checkpoint; most values may be changed."""
    like: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A new run with the configuration of the run in this folder, instead of a preset's, as far as no option changes
    it: the same with another --seed, for example. Its URL of checkpoints is not taken over. For agents, --from-run
    beside it gives the new run the weights of another run, whose network must be the same."""
    threads: Threads = 1
    """CPU threads of a learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run and not self.new_folder:
            raise ValueError("--run names a new run and --resume an old one: give only one of them")
        if self.like and self.resume:
            raise ValueError("--like begins a new run and --resume continues an old one: give only one of them")

    @property
    def new_folder(self) -> bool:
        """Whether the run has no folder yet."""
        return self.resume is None or is_url(self.resume)

    @property
    def config(self) -> Any:
        """What belongs to the run rather than to this launch of it, with absolute paths."""
        kind = next(kind for kind in type(self).__mro__ if kind in CONFIGS.values())
        config = kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(kind)})
        with user_errors():
            return config.located(absolute)


@dataclass(frozen=True, kw_only=True)
class AllowOptions(Checked):
    """What a run of another person may name."""

    allow: Allow = None
    """If a run names them: run the code of this environment, such as dm:my_module:Env, or core, such as
    core:my_module:MyCore, or use this URL of its checkpoints; several are joined by commas. Cores that come with this
    program need none, nor do rooms:, diagnostic: and envpool: environments, and ids of gymnasium and of the packages
    that the documentation of environments lists."""


@dataclass(frozen=True, kw_only=True)
class PlayOptions(AllowOptions):
    """What is common to commands that play episodes with the agent of a run."""

    greedy: bool = False
    """Take the most probable action rather than a sample of the policy."""
    seed: Count = 0
    """Seed of the episodes; never shared with training."""
    step_seconds: Annotated[Above0 | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Longest time that a step or reset of the environments may take; if not given, the run's own."""
    max_episode_steps: Annotated[Positive | None, tyro.conf.arg(metavar="INT")] = None
    """Agent steps of an episode beyond which it is an error, as it would never end; if not given, the run's own."""

    def limits(self, actors: ActorsConfig) -> ActorsConfig:
        """A run's configuration with the limits that are given here."""
        given: dict[str, Any] = {"step_seconds": self.step_seconds, "max_episode_steps": self.max_episode_steps}
        return dataclasses.replace(actors, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """What is common to commands that use a run."""

    run: RunFolder
    """Folder of the run; its last readable checkpoint is used."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Checked):
    """What commands that use a trained sequence model have in common."""

    run: RunFolder
    """Folder of the run, of which the last readable checkpoint is used, or of a checkpoint, RUN/checkpoints/STEPS."""
    path: str | None = None
    """Where the data are, if they have moved."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 1
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class DrawingOptions(ModelOptions):
    """What commands that draw sound or images have in common."""

    out: NewFolder = None
    """Where to write; if not given, the folder samples in the run's."""
