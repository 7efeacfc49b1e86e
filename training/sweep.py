"""What a sweep consists of: the grid of a command line as one configuration a trial, and the file that keeps it.

Every option of `launch` holds for all trials; `--cores`, `--rates`, `--seeds` and `--vary` say in what they differ.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.core import CORES
from commands import launch
from learner import checkpoints
from learner.files import read_json
from training import UserError
from training.config import RunConfig, from_plain, to_plain

FILE = "sweep.json"
OWN = ("--core", "--seed", "--run", "--resume", "--local", "--ray-address", "--threads", "--checkpoint-url")
"""Options of `launch` that a sweep decides itself."""
IGNORED = {"preset", "seed", "env", "log_every", "checkpoint_seconds", "keep_checkpoints", "checkpoint_url"}
IGNORED |= {"eval_episodes", "video_episodes", "actors.step_seconds", "actors.max_episode_steps"}
"""Fields that make no other variant of a configuration."""
SHORT = {"compression_rate": "rate", "compression": "", "compression_loss": "loss"}
"""What a label calls a field; else its name."""
Axis = tuple[str, tuple[str, ...]]
"""A field of the configuration, such as "agent.core.compression_rate", and its values as words."""


def make_trials(
    preset: str,
    cores: Sequence[str],
    rates: Sequence[str],
    seeds: Sequence[int],
    vary: Sequence[Axis],
    options: Sequence[str],
) -> dict[str, RunConfig]:
    """The trials of a grid by name, seeds outermost, so that all variants have one run before any has two.

    Rates are those of the compressive core. A field that only some cores have is varied, or set, in these alone.

    Args:
        preset: where all defaults come from.
        cores: names in `CORES`; the compressive one comes first if there are rates, and alone if there is neither.
        rates: compression rates; none for the preset's.
        seeds: one trial a seed of each variant.
        vary: more fields with their values.
        options: other words of `compressive launch`.

    Raises:
        UserError: if a name or value is impossible, or nothing differs.
    """
    for word in options:
        if word.partition("=")[0].replace("_", "-") in OWN:
            raise UserError(f"{word}: expected options that hold for all runs; compare decides this one itself")
    for name, values in [("cores", cores), ("rates", rates), ("seeds", seeds), *vary]:
        if len(set(values)) < len(values):
            raise UserError(f"{name}: expected different values, got {' '.join(map(str, values))}")
    for field, values in vary:
        if not values:
            raise UserError(
                f"vary: expected a field and its values, as in agent.core.compression mean max, got {field}"
            )
        if field in ("preset", "seed", "core") or not any(_has(core, field) for core in CORES):
            raise UserError(f"vary: expected a field of the configuration, none of preset, core and seed, got {field}")
    cores = list(cores) or ["compressive"]
    if rates and "compressive" not in cores:
        cores = ["compressive", *cores]
    variants = []
    for core in cores:
        axes = [(field, values) for field, values in vary if _has(core, field)]
        if rates and core == "compressive":
            axes = [("agent.core.compression_rate", tuple(rates)), *axes]
        shared = _of_core(core, options)
        for chosen in itertools.product(*(values for _, values in axes)):
            changes = [f"--{field}={value}" for (field, _), value in zip(axes, chosen)]
            variants.append(launch.parse(["--preset", preset, "--core", core, *shared, *changes]).config)
    if len(variants) < 2:
        raise UserError("expected something to compare: several --cores or --rates, or --vary FIELD VALUE VALUE")
    labels, envs = label(variants), {variant.env for variant in variants}
    trials = {}
    for seed in seeds:
        for text, variant in zip(labels, variants):
            where = f"-{variant.env}" if len(envs) > 1 else ""
            name = re.sub(r"[^a-z0-9.]+", "-", f"{text}{where}-seed-{seed}".lower())
            trials[name] = dataclasses.replace(variant, seed=seed)
    if len(trials) < len(variants) * len(seeds):
        raise UserError("vary: expected fields that make a difference; two variants are the same run")
    return trials


def _has(core: str, field: str) -> bool:
    """Whether a core's configuration has a field, and the field a meaning there; fields of others belong to all."""
    name = field.removeprefix("agent.core.")
    if name == field:
        return True
    names = {each.name for each in dataclasses.fields(CORES[core][0])}
    return name in names and (core == "compressive" or not name.startswith("compress"))


def _of_core(core: str, options: Sequence[str]) -> list[str]:
    """The options less those of other cores, with their values; what no core has is left for `launch` to refuse."""
    kept: list[str] = []
    keep = True
    for word in options:
        if word.startswith("--"):
            field = word.removeprefix("--").partition("=")[0].replace("-", "_")
            keep = _has(core, field) or not any(_has(other, field) for other in CORES)
        if keep:
            kept.append(word)
    return kept


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a nested configuration by their full names, as in "agent.core.memory_size"."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def label(configs: Sequence[RunConfig]) -> list[str]:
    """What to call each configuration beside the others: its core and the fields in which it differs from another.

    Runs that differ only in seed, environment or in what is kept of them have one label; they are of one variant. A
    core's own fields count beside the same core only.
    """
    flats = [flatten(to_plain(config)) for config in configs]
    labels = []
    for flat in flats:
        parts = []
        for field, value in flat.items():
            own = field.startswith("agent.core.")
            rivals = [other for other in flats if not own or other["agent.core.name"] == flat["agent.core.name"]]
            if field in IGNORED or field == "agent.core.name" or all(other[field] == value for other in rivals):
                continue
            short = field.rpartition(".")[2]
            parts.append(f"{SHORT.get(short, short.replace('_', ' '))} {_words(value)}".strip())
        labels.append(f"{flat['agent.core.name']} ({', '.join(parts)})" if parts else flat["agent.core.name"])
    return labels


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def differences(trials: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """Of each trial the fields in which any two of them differ: the hyperparameters of the sweep."""
    flats = {name: flatten(to_plain(config)) for name, config in trials.items()}
    fields = list(dict.fromkeys(field for flat in flats.values() for field in flat))
    varied = [field for field in fields if len({repr(flat.get(field)) for flat in flats.values()}) > 1]
    return {name: {field: flat[field] for field in varied if field in flat} for name, flat in flats.items()}


def write(folder: Path, trials: Mapping[str, RunConfig], command: str) -> None:
    """Keeps a sweep in its folder."""
    plain = {name: to_plain(config) for name, config in trials.items()}
    checkpoints.write_json(folder / FILE, {"command": command, "trials": plain})


def read(folder: Path) -> tuple[dict[str, RunConfig], str]:
    """The trials of a sweep's folder and the command that began it.

    Raises:
        UserError: if the folder holds no sweep, or one that cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} is no sweep: expected a folder with {FILE}, made by `compressive compare`")
    try:
        plain = read_json(path)
        checkpoints.require(plain, {"trials": {str: dict}, "command": str}, "sweep")
        return {name: from_plain(config) for name, config in plain["trials"].items()}, plain["command"]
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: expected a sweep as `compressive compare` writes it, got: {error}") from error
