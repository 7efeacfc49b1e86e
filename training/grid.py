"""The grid of a comparison: its command line as one configuration a trial, and the names of trials and variants.

A variant is a trial without its seed. Running the trials is in `sweep.py`.
"""

import dataclasses
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from agent.core import AgentCoreConfig, CustomCoreConfig, is_custom
from agent.core.matching import with_state_of
from storage.errors import UserError
from training.config import Config, Configuration, core_name
from training.plain import by_full_name, to_plain
from training.suites import Task

OWN = (
    "--core",
    "--seed",
    "--run",
    "--resume",
    "--local",
    "--ray-address",
    "--threads",
    "--checkpoint-url",
    "--skip-missing-levels",
)
"""Options of training commands that a sweep decides itself, or that are no part of a configuration."""
DATA = {"env", "eval_env", "corpus", "path", "corpus.path"}
"""Fields that say what is learned; variants are compared on equal data."""
IGNORED = {
    "kind",
    "preset",
    "seed",
    "log_every",
    "checkpoint_seconds",
    "keep_checkpoints",
    "keep_every",
    "checkpoint_url",
    "eval_episodes",
    "video_episodes",
    "actors.step_seconds",
    "actors.max_episode_steps",
    "evaluate_every",
    "evaluate_tokens",
    "sample_seconds",
    "samples",
    *DATA,
}
"""Fields that do not make another variant."""
OF_DATA = {
    "agent.pixel_zero",
    "stages",
    "frames",
    "actors.num_actors",
    "actors.unroll_length",
    "actors.envs_per_actor",
    "rows_per_update",
    "learner.discount",
    "learner.lambda_",
    "learner.exploration",
    "learner.entropy_cost",
    "learner.entropy_cost_end",
}
"""Fields that make another variant only if they differ on the same data: each task of a suite has its own."""
SHORT = {"compression_rate": "rate", "compression": "", "compression_loss": "loss"}
"""Names of fields in labels, where they differ from the field's own."""
LONGEST = 200
"""Characters of a field and its value in labels."""
LONGEST_NAME = 120
"""Characters of a variant in the names of trials, which are folders: beside it there are the task and the seed."""
Axis = tuple[str, tuple[str, ...]]
"""A field of the configuration, such as "agent.core.compression_rate", and its values as words."""


def make_trials(
    kind: type[Config],
    parse: Callable[[list[str]], Config],
    preset: str | None,
    cores: Sequence[str],
    rates: Sequence[str],
    seeds: Sequence[int],
    vary: Sequence[Axis],
    options: Sequence[str],
    fewest: int = 2,
) -> dict[str, Config]:
    """The configurations of a grid by the trial's name, seeds outermost: all variants have one run before any has two.

    Args:
        kind: class of the configurations, such as `RunConfig`.
        parse: the configuration of the words of a command line.
        preset: where all other values come from; None for that which `parse` chooses.
        cores: names in `kind.cores`, or for agents MODULE:CLASS of a custom one; the compressive core is added if there
            are rates, and the default is that alone.
        rates: compression rates of the compressive core; none for the preset's.
        vary: other fields with their values; a field that only some cores have is varied for those alone.
        options: other words of the command that trains; those of one core hold for that alone.
        fewest: variants that there have to be.

    Raises:
        UserError: if a name or value is impossible, or there are fewer variants.
    """
    vary = [(name.replace("-", "_"), values) for name, values in vary]  # options may be written with either
    _require_different([("cores", cores), ("rates", rates), ("seeds", seeds), *vary])
    # Rates ask for the compressive core; without any, it is the only one.
    cores = list(cores) or ["compressive"]
    if rates and "compressive" not in cores:
        cores = ["compressive", *cores]
    _require_grid(kind, cores, vary, options)

    # Each core with every combination of the fields that it has.
    variants = []
    for core in cores:
        words = ["--core", core, *_options_of(kind, core, cores, options)]
        if preset is not None:
            words += ["--preset", preset]
        axes = [(name, values) for name, values in vary if _has(kind, core, name)]
        if rates and core == "compressive":
            of_rates = (f"{kind.core_field}.compression_rate", tuple(rates))
            axes.insert(0, of_rates)
        for chosen in _combinations(axes):
            variant = parse([*words, *chosen])
            variants.append(variant)
    if len(variants) < fewest:
        raise UserError("expected something to compare: several --cores or --rates, or --vary FIELD VALUE VALUE")
    _require_one_preset(variants)

    # Names say in what the variants differ, and what they learn from if that differs.
    data = [_data(variant) for variant in variants]
    titles = label(variants)
    if len(set(data)) > 1:
        titles = [f"{title}-{learned_from}" for title, learned_from in zip(titles, data)]
    return _with_seeds(titles, variants, seeds)


def make_suite(
    tasks: Sequence[Task],
    make: Callable[[list[str]], dict[str, Config]],
    options: Sequence[str],
) -> dict[str, Config]:
    """The configurations of a suite by the trial's name, seeds outermost, then tasks: all have one run before any two.

    Args:
        make: the trials of one task, as `make_trials` makes them, from words of the command that trains.
        options: other words for all tasks, which take the place of a task's own.

    Raises:
        UserError: as `make_trials` does, and if the options name an environment.
    """
    for word in options:
        if _option(word) in ("--env", "--eval-env", "--stages"):
            raise UserError(f"{word}: expected options that hold for all tasks of the suite, which decides this one")
    trials = {}
    for task in tasks:
        title = re.sub(r"[^a-z0-9.]+", "-", task.name.lower())
        for name, config in make([*task.words, *options]).items():
            trials[f"{title}-{name}"] = config
    by_seed = sorted(trials.items(), key=lambda trial: trial[1].seed)
    return dict(by_seed)


def match_states(trials: Mapping[str, Config], num_bytes: int) -> dict[str, Config]:
    """The trials with cores whose states have at most so many bytes a row; see `agent.core.matching`.

    Raises:
        UserError: if the smallest state of a core has more bytes, a run is impossible with the core's new size, or two
            variants differed in that size alone.
    """
    matched: dict[str, Config] = {}
    for name, config in trials.items():
        try:
            core = with_state_of(cast(AgentCoreConfig, config.core_config), num_bytes)
            matched[name] = _replaced(config, config.core_field, core)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
    names: dict[str, str] = {}
    for name, config in matched.items():
        training = repr(training_fields(config))
        if training in names:
            same = f"{names[training]} and {name}"
            raise UserError(f"state_bytes: expected variants that differ in more than their size, got {same}")
        names[training] = name
    return matched


def _replaced(config: Any, field: str, value: Any) -> Any:
    """A configuration with another value of a field, such as "agent.core"."""
    first, _, rest = field.partition(".")
    if rest:
        value = _replaced(getattr(config, first), rest, value)
    return dataclasses.replace(config, **{first: value})


def _with_seeds(titles: Sequence[str], variants: Sequence[Config], seeds: Sequence[int]) -> dict[str, Config]:
    """Each variant with each seed, by the trial's name. Raises a UserError if two variants are the same run."""
    differences = [repr(training_fields(variant)) for variant in variants]
    if len(set(differences)) < len(variants):
        raise UserError("vary: expected fields that make a difference; two variants are the same run")

    # Names are those of folders, which have neither capitals nor signs, and no length.
    slugs = [re.sub(r"[^a-z0-9.]+", "-", title.lower()).rstrip("-") for title in titles]
    names = []
    for slug, difference in zip(slugs, differences):
        if slugs.count(slug) > 1 or len(slug) > LONGEST_NAME:
            digest = hashlib.sha256(difference.encode(errors="backslashreplace")).hexdigest()
            slug = f"{slug[: LONGEST_NAME - 9]}-{digest[:8]}"
        names.append(slug)

    trials = {}
    for seed in seeds:
        for name, variant in zip(names, variants):
            trials[f"{name}-seed-{seed}"] = dataclasses.replace(variant, seed=seed)
    return trials


def _combinations(axes: Sequence[Axis]) -> Iterator[tuple[str, ...]]:
    """Every combination of values, one of each field, as words of the command that trains."""
    choices = []
    for name, values in axes:
        choices.append([_option_with(name, value) for value in values])
    return itertools.product(*choices)


def _require_one_preset(variants: Sequence[Configuration]) -> None:
    """Raises a UserError if the preset that is chosen by the data differs between variants."""
    data_of_preset = {variant.preset: _data(variant) for variant in variants}
    if len(data_of_preset) > 1:
        chosen = " and ".join(f"{preset} for {data}" for preset, data in data_of_preset.items())
        raise UserError(f"vary: expected one preset, got {chosen}; name one with --preset")


def _require_different(axes: Iterable[tuple[str, Sequence[object]]]) -> None:
    """Raises a UserError for values that come twice."""
    for name, values in axes:
        if len(set(values)) < len(values):
            given = " ".join(map(str, values))
            raise UserError(f"{name}: expected different values, got {given}")


def _require_grid(
    kind: type[Configuration], cores: Sequence[str], vary: Sequence[Axis], options: Sequence[str]
) -> None:
    """Raises a UserError for options that a sweep decides itself, and fields that none of its cores has."""
    for word in options:
        if _option(word) in OWN:
            raise UserError(f"{word}: expected options that hold for all runs; compare decides this one itself")

    for name, values in vary:
        given = " ".join((name, *values))
        is_ours = name in ("preset", "seed", "core")
        is_known = any(_has(kind, core, name) for core in (*kind.cores, *cores))
        if not values or not is_known or is_ours:
            expected = "a field of the configuration other than preset, core and seed, and its values, as in "
            example = f"{kind.core_field}.compression mean max"
            raise UserError(f"vary: expected {expected}{example}, got {given}")
        if not any(_has(kind, core, name) for core in cores):
            raise UserError(f"vary: expected a field of a core that is compared ({', '.join(cores)}), got {given}")


def _option(word: str) -> str:
    """The option in a word of a command line, as --help spells it: "--eval-env" in "--eval_env=ENV"."""
    name, _, _ = word.partition("=")
    return name.replace("_", "-")


def _option_with(name: str, value: str) -> str:
    """A field and its value as a word of a command line: fields that are on or off have an option for each."""
    group, dot, own = name.rpartition(".")
    if value.lower() == "true":
        return f"--{name}"
    if value.lower() == "false":
        return f"--{group}{dot}no-{own}"
    return f"--{name}={value}"


def _field(word: str) -> str:
    """The field of an option in a word of a command line: "agent.core.clock" in "--agent.core.no-clock"."""
    name = _option(word).removeprefix("--").replace("-", "_")
    group, dot, own = name.rpartition(".")
    return group + dot + own.removeprefix("no_")


def _data(config: Configuration) -> str:
    """What a run learns from, in one text."""
    fields = by_full_name(to_plain(config))
    values = []
    for name in sorted(DATA):
        # A configuration has some of these fields, and some of those may be None.
        value = fields.get(name) or ""
        values.append(str(value))
    return " ".join(values).strip()


def training_fields(config: Configuration) -> dict[str, object]:
    """The fields of a run, by full name, on which its training depends: its data, its seed and what makes a variant."""
    fields = by_full_name(to_plain(config))
    kept = {}
    for name, value in fields.items():
        if name in DATA or name == "seed" or name not in IGNORED:
            kept[name] = value
    return kept


def _has(kind: type[Configuration], core: str, name: str) -> bool:
    """Whether a field has a meaning for a core; fields outside of the core's configuration always have."""
    own = name.removeprefix(f"{kind.core_field}.")
    is_of_a_core = own != name
    classes = kind.cores
    if is_custom(core):
        classes = {core: CustomCoreConfig}
    if not is_of_a_core or core not in classes:
        return True

    # Configurations of Transformer-XL inherit fields about compression, which it has not.
    if own.startswith("compress") and core != "compressive":
        return False
    fields = dataclasses.fields(classes[core])  # type: ignore[arg-type]
    return any(field.name == own for field in fields)


def _options_of(kind: type[Configuration], core: str, cores: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """The options without those of other cores that are compared; what none of them has, the parser is to refuse."""
    keep = True
    for word in options:
        if word.startswith("--"):
            name = _field(word)
            is_of_others = any(_has(kind, other, name) for other in cores)
            keep = _has(kind, core, name) or not is_of_others
        # The values of an option follow it, and go with it.
        if keep:
            yield word


def label(configs: Sequence[Configuration]) -> list[str]:
    """A name for each configuration of one kind: its core and the fields in which it differs from another.

    Runs of one label are runs of one variant. Fields of a core are compared between configurations of that core only.
    Transformer-XL without memory is `local`.
    """
    compared = [_compared_fields(config) for config in configs]

    # What varies: the fields with several values among the configurations that they are compared with.
    values = defaultdict[tuple[str, str], set[str]](set)
    for fields in compared:
        for field in fields:
            values[field.rivals, field.name].add(repr(field.value))
    varying = {place for place, found in values.items() if len(found) > 1}

    labels = []
    for config, fields in zip(configs, compared):
        title = _core_of(config)
        parts = [_difference(field.name, field.value) for field in fields if (field.rivals, field.name) in varying]
        # The core alone is enough if it is the only variant with that core.
        if parts:
            title += f" ({', '.join(parts)})"
        labels.append(title)
    return labels


class _Field(NamedTuple):
    """A field that may make another variant. It is compared between configurations that have the same `rivals`."""

    name: str
    value: object
    rivals: str


def _compared_fields(config: Configuration) -> list[_Field]:
    """The fields of a configuration that make another variant if a rival has another value."""
    core = _core_of(config)
    fields = by_full_name(to_plain(config))
    # Agents are compared where they are evaluated; those that learned elsewhere for it are other variants.
    task = fields.get("eval_env") or fields.get("env")
    data = task or _data(config)
    found = []
    for name, value in fields.items():
        if name.startswith(f"{config.core_field}."):
            found.append(_Field(name, value, f"core {core}"))  # it says nothing about another core
        elif name == "env":
            found.append(_Field(name, value, f"evaluated in {task}"))
        elif name in OF_DATA:
            found.append(_Field(name, value, f"data {data}"))
        elif name not in IGNORED:
            found.append(_Field(name, value, "all"))
    return found


def _core_of(config: Configuration) -> str:
    """The name of a configuration's core in labels."""
    has_no_memory = getattr(config.core_config, "memory_size", None) == 0
    name = core_name(config)
    return "local" if name == "transformer-xl" and has_no_memory else name


def _difference(name: str, value: object) -> str:
    """A field and its value in a label, as in "rate 4"; of a long one the beginning and a digest of all of it."""
    _, _, own_name = name.rpartition(".")
    shown = SHORT.get(own_name, own_name.replace("_", " "))
    values: Sequence[object] = [value]
    if isinstance(value, list | tuple):
        values = value
    words = [shown, *map(str, values)]
    text = " ".join(words).strip()
    if len(text) > LONGEST:
        # Runs are of one variant if their labels are equal.
        digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
        text = f"{text[: LONGEST - 13]} ... {digest[:8]}"
    return text
