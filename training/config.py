"""The whole configuration of a run, and its way into `config.json` and back.

What each part means stands beside what it configures (`agent`, `actors`, `learner`, `envs`); presets are elsewhere.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from actors import ActorsConfig
from actors.pool import pairs
from agent import AgentConfig
from agent.core import CORES
from agent.fields import AtLeast0, Checked, Count, Positive, Several
from learner.checkpoints import shown
from learner.files import read_json, require_no_secret
from learner.learner import LearnerConfig

KINDS = {
    "launch": ("compressive launch", "compressive evaluate, visualize, report, compare --from or launch --resume"),
    "text": ("compressive text train", "compressive text evaluate, sample or train --resume"),
    "speech": ("compressive speech train", "compressive speech evaluate, sample or train --resume"),
}
"""Kinds of runs: what makes one, and what else takes it. `config.json` names the kind, but for `launch`."""


RENAMED = {
    "optimiser": "optimizer",
    "update_every": "accumulation_steps",
    "late_step": "late_start",
    "late_update_every": "late_accumulation_steps",
}
"""Fields by their names in version 0.1; still read from files and command lines."""


@dataclass(frozen=True)
class RunConfig(Checked):
    """A training run; `compressive launch` writes it, resolved, to the run's `config.json`."""

    preset: str = "cpu"
    """Where all other defaults come from: cpu (a small level, two CPU cores), memory (a task that asks for a longer
    memory, for `compare`), paper (section 5.7, DeepMind Lab) or dmlab30 (the same agent on DMLab-30)."""
    env: str = "rooms:small"
    """Environment: rooms:small, rooms:full (the level itself, re-created), dmlab:LEVEL (needs DeepMind Lab), gym:ID
    (any gymnasium id), dm:MODULE:CLASS (any dm_env.Environment), diagnostic:recall or diagnostic:tmaze.
    Its fields are changed behind the name, as in rooms:full,hud=False. Several, joined by commas, are tasks that the
    actors share out; dmlab:dmlab30 is the thirty of DMLab-30."""
    frames: Positive = 10_000_000
    """Environment frames to train for (agent steps times the action repeat)."""
    seed: Count = 0
    """Seed of weights, environments and actions."""
    unrolls_per_update: Several = 1
    """Unrolls (of envs_per_actor rows each) that make one batch."""
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
    """Time between two checkpoints; at the end or at Ctrl-C there is one of all that was learned."""
    keep_checkpoints: Positive = 3
    """How many of the newest checkpoints are kept."""
    checkpoint_url: str | None = None
    """Where checkpoints go instead of the run's folder: any URL that fsspec knows, such as s3://bucket/run. Without
    credentials, for it is written to files; those belong in the environment, as in FSSPEC_S3_KEY."""
    eval_episodes: Positive = 128
    """Episodes of each task in the evaluation at the end, rounded up to a multiple of the environments that are played
    together."""
    video_episodes: Count = 2
    """Episodes in the video at the end; 0 for none. Only images in RGB are filmed."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The network."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """The learner."""
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    """The actors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs("learner_labels", self.learner_labels)
        url = self.checkpoint_url
        if url is not None:
            try:
                require_no_secret(url)
            except ValueError as error:
                raise ValueError(f"checkpoint_url: {error}") from error
        if url is not None and (not re.match(r"[a-z][a-z0-9+.-]*://.", url) or url.startswith("memory:")):
            expected = "a URL that outlives this process, such as s3://bucket/run or file:///mnt/run"
            raise ValueError(f"checkpoint_url: expected {expected}, got {url!r}")
        segment = getattr(self.agent.core, "segment_size", 1)
        if self.actors.unroll_length % segment:
            raise ValueError(
                f"unroll_length: expected a multiple of the core's segment_size = {segment}, "
                f"got {self.actors.unroll_length}"
            )
        rows = self.unrolls_per_update * self.actors.envs_per_actor
        if rows % self.learners:
            raise ValueError(
                f"learners: expected a divisor of the {rows} rows of a batch (unrolls_per_update x envs_per_actor), "
                f"got {self.learners}"
            )
        if self.learners > 1 and self.learner.device not in ("auto", "cpu", "cuda"):
            raise ValueError(
                f"device: expected auto, cpu or cuda for {self.learners} learners, got {self.learner.device!r}"
            )

    @property
    def core_name(self) -> str:
        """The core's name in `agent.core.CORES`."""
        return next(name for name, (config, _) in CORES.items() if type(self.agent.core) is config)


def to_plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it; the core's name stands beside its fields."""
    plain = dataclasses.asdict(config)
    plain["agent"]["core"] = {"name": config.core_name, **plain["agent"]["core"]}
    return plain


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of all that differs between two configurations, as `to_plain` gives them."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:  # cores differ in their fields
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


def from_plain(plain: dict[str, Any]) -> RunConfig:
    """The configuration that `to_plain` took apart.

    Raises:
        ValueError: if a field is unknown or impossible, or the core has no name that is known.
    """
    return build(RunConfig, plain, "config")


def build(kind: Any, plain: Any, where: str, cores: Mapping[str, tuple[type, Any]] = CORES) -> Any:
    """A value of a type, such as a dataclass of others, of what JSON can hold; `where` names it in errors.

    Cores are told apart by their names in `cores`.

    Raises:
        ValueError: if a field is unknown or impossible, or a core has no name that is known.
    """
    is_core = isinstance(kind, types.UnionType) and CORES["compressive"][0] in typing.get_args(kind)
    if not is_core and not dataclasses.is_dataclass(kind):
        return tuple(plain) if isinstance(plain, list) else plain  # JSON has no tuples
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: expected an object, got {shown(plain)}")
    if is_core:
        plain = dict(plain)
        name = plain.pop("name", None)
        if name not in list(cores):  # a list, since JSON's values need not be hashable
            raise ValueError(f"{where}: expected a core out of {', '.join(cores)}, got {shown(name)}")
        kind = cores[name][0]
    plain = {RENAMED.get(name, name): value for name, value in plain.items()}
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(plain) - set(known)):
        raise ValueError(f"{where}: unknown fields {shown(', '.join(unknown))}; expected fields of this version")
    if missing := [name for name, field in known.items() if name not in plain and _required(field)]:
        raise ValueError(f"{where}: expected {', '.join(missing)} in it, got {shown(list(plain))}")
    fields = {name: build(hints[name], value, f"{where}.{name}", cores) for name, value in plain.items()}
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def read_kind(run: Path) -> tuple[str, dict[str, Any]]:
    """The kind of a run, one of `KINDS`, and what else its `config.json` holds.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if the file cannot be read, or names no kind that is known.
    """
    path = run / "config.json"
    if not path.is_file():
        made = ", ".join(f"`{command}`" for command, _ in KINDS.values())
        raise FileNotFoundError(f"{run} is not a run: expected a folder with config.json, as it is made by {made}")
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise ValueError(f"{path}: expected an object, got {shown(plain)}")
    kind = plain.pop("kind", "launch")
    if kind not in list(KINDS):  # a list, since JSON's values need not be hashable
        raise ValueError(f"{path}: kind: expected one of {', '.join(KINDS)}, got {shown(kind)}")
    return kind, plain


def read_plain(run: Path, kind: str) -> dict[str, Any]:
    """What the `config.json` of a run of a kind holds, without the kind.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if the file cannot be read, or the run is of another kind; says which commands take that.
    """
    found, plain = read_kind(run)
    if found != kind:
        (made, use), (expected, _) = KINDS[found], KINDS[kind]
        raise ValueError(f"{run} is a run of `{made}`, expected one of `{expected}`; use {use}, or compressive status")
    return plain


def read_config(run: Path) -> RunConfig:
    """The configuration of a run's folder.

    Raises:
        FileNotFoundError: if the folder is no run.
        ValueError: if its `config.json` cannot be read, or it is a run of another kind than `launch` makes.
    """
    plain = read_plain(run, "launch")
    try:
        return from_plain(plain)
    except ValueError as error:
        raise ValueError(f"{run / 'config.json'}: {error}") from error
