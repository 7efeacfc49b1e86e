"""From the words of a command line to the options of a command, by tyro. Errors are one line. Nothing imports torch."""

import contextlib
import dataclasses
import io
import operator
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tyro

from agent.core.config import is_custom
from agent.core.fields import Several
from commands.options import OPTIONS, CompareOptions, LaunchOptions, TrainingOptions
from learner.config import ReplayConfig
from sequences.kinds import CONFIGS, PRESETS
from storage.errors import UserError, user_errors
from storage.files import is_url
from storage.run import Run, find_run
from training.config import RunConfig, core_name
from training.plain import differences, read_config, read_url, to_plain
from training.presets import preset_of
from training.trust import checkpoint_place, require_core

HELP = ("-h", "--help", "help")
_types = tyro.constructors.ConstructorRegistry()


@_types.primitive_rule
def _integer(info: Any) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """All integers may be written as 6M, 200k or 1e6."""

    units = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "b": 10**9}

    def read(words: list[str]) -> int:
        found = re.fullmatch(r"(-?\d{1,30}(?:\.\d+)?(?:e\+?\d{1,2})?)([kmgb]?)", words[0].lower())
        if found:
            value = Fraction(found[1]) * units[found[2]]
            if value.denominator == 1:
                return int(value)
        raise ValueError(f"expected an integer, such as 64, 200k or 6M, got {words[0]!r}")

    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        1, "INT", read, lambda value: type(value) is int, lambda value: [str(value)]
    )


@_types.primitive_rule
def _nothing(info: Any) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Options without a value are written as none, as their help says, or as None."""

    def read(words: list[str]) -> None:
        if words[0].lower() != "none":
            raise ValueError(f"expected none, got {words[0]!r}")

    if info.type is not type(None):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        1, "{none}", read, lambda value: value is None, lambda value: ["none"]
    )


@_types.primitive_rule
def _path(info: Any) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Paths may begin with ~, which shells leave as it is in --run=~/runs/x."""

    def read(words: list[str]) -> Path:
        try:
            return Path(words[0]).expanduser()
        except RuntimeError as error:  # ~NAME of no user
            raise ValueError(f"expected a path, got {words[0]!r}: {error}") from error

    if info.type is not Path:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        1, "PATH", read, lambda value: isinstance(value, Path), lambda value: [str(value)]
    )


def parse_command(name: str, words: Sequence[str]) -> tuple[Any, ...]:
    """What the function of a command is called with. Prints help and exits if that is asked for.

    Raises a UserError that names the option, what was expected and what was given.
    """
    if name == "launch":
        return (parse_launch(words),)
    if name == "compare":
        options, rest = parse(CompareOptions, "compressive compare", words, return_unknown_args=True)
        if _is_given("from", words) and not options.runs:
            raise UserError("from: expected folders of runs, got none")
        return options, rest, shlex.join(["compressive", "compare", *words])
    if name in OPTIONS:
        return (parse(OPTIONS[name], f"compressive {name}", words),)

    # A command of commands, such as `text train`.
    part, *rest = words or ["help"]
    parts = {command.split()[1]: kind for command, kind in OPTIONS.items() if command.startswith(f"{name} ")}
    if part in HELP:
        print(f"usage: compressive {name} COMMAND [OPTIONS]\n")
        for part, kind in parts.items():
            first_sentence = kind.__doc__.partition(".")[0]
            print(f"  {part:<9}{' '.join(first_sentence.split())}")
        print(f"\n`compressive {name} COMMAND --help` explains a command's options.")
        sys.exit()
    if part not in parts:
        raise UserError(f"{name}: expected {', '.join(parts)}, got {part!r} (see compressive {name} --help)")
    if part == "train":
        return name, part, parse_train(name, rest)
    return name, part, parse(parts[part], f"compressive {name} {part}", rest)


def parse_train(kind: str, words: Sequence[str]) -> Any:
    """The options of the command that trains a kind of run; the defaults are those of its preset and core, or of a run
    to resume or to be like."""
    is_agent = kind == "launch"
    command = "launch" if is_agent else f"{kind} train"
    options = OPTIONS[command]
    _require_once(options, words)

    # First those options that decide the defaults of all others.
    defaults = _defaults_of_launch(words) if is_agent else _defaults_of_sequences(kind, words)
    fields = {field.name: getattr(defaults.config, field.name) for field in dataclasses.fields(CONFIGS[kind])}
    default = options(**fields, core=defaults.core)

    found = parse(options, f"compressive {command}", words, default=default)
    if is_agent and not found.resume:
        found = _with_actors_for_tasks(found, words)
    if defaults.run and found.core != defaults.core:
        raise UserError(f"core: expected {defaults.core} as in {defaults.run}, got {found.core}")
    if is_custom(found.core) and core_name(found) != found.core:
        raise UserError(f"core: expected one name of it, got --core {found.core} and {core_name(found)}")
    if found.resume:
        _require_fixed(defaults.config, found)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LaunchStart(TrainingOptions):
    """What decides the defaults of `launch`."""

    env: str | None = None
    learners: Several = 1
    from_run: str | None = None


class _Defaults(NamedTuple):
    """The values of options that are not typed: a configuration and the name of its core.

    `run` is where they come from, whose core cannot be changed; None for a preset.
    """

    config: Any
    core: str
    run: str | None


def _defaults_of_launch(words: Sequence[str]) -> _Defaults:
    """The defaults of an agent's run: of the run to resume or to be like, or of a preset, with the network of a run to
    start from."""
    start = _parse_start(_LaunchStart, "launch", words)
    if start.resume:
        return _defaults_of_run("launch", start.resume)
    if start.like:
        found = _defaults_like("launch", start.like, words)
        # Its checkpoints are its own.
        return found._replace(config=dataclasses.replace(found.config, checkpoint_url=None))
    preset = start.preset
    if not _is_given("preset", words):
        preset = preset_of(start.env)

    make = PRESETS["launch"]
    core = start.core
    with user_errors():
        # A preset may name a run to start from, too.
        origin = start.from_run or make(preset, core).from_run
        if origin:
            config = _with_network(preset, read_config(find_run(origin)))
            core = core_name(config)
        else:
            config = make(preset, core)
    if start.learners > 1:
        # Replayed rows are in the memory of a single learner, which alone makes several updates of a batch.
        config = dataclasses.replace(config, replay=ReplayConfig(), rows_per_update=None)
    return _Defaults(config, core, origin)


def _defaults_of_sequences(kind: str, words: Sequence[str]) -> _Defaults:
    """The defaults of a run of text, speech or images: of the run to resume or to be like, or of a preset."""
    start = _parse_start(TrainingOptions, f"{kind} train", words)
    if start.resume:
        return _defaults_of_run(kind, start.resume)
    if start.like:
        return _defaults_like(kind, start.like, words)
    with user_errors():
        return _Defaults(PRESETS[kind](start.preset, start.core), start.core, None)


def _defaults_of_run(kind: str, run: str) -> _Defaults:
    """The defaults of a run to resume."""
    with user_errors():
        config = _read_resumed(kind, run)
    return _Defaults(config, core_name(config), run)


def _defaults_like(kind: str, run: str, words: Sequence[str]) -> _Defaults:
    """The defaults of a new run like another one. Raises a UserError if a preset is named, too."""
    if _is_given("preset", words):
        raise UserError("--like takes the place of --preset: give only one of them")
    with user_errors():
        config = read_config(Run(run), CONFIGS[kind])
    return _Defaults(config, core_name(config), run)


def _read_resumed(kind: str, run: str) -> Any:
    """The configuration of a run to resume: of its folder, or for agents also of the URL of its checkpoints."""
    if kind == "launch" and is_url(run):
        return read_url(run)
    found = find_run(run)
    if found.checkpoint is not None:
        instead = f"--resume {shlex.quote(str(found.path))}"
        if kind == "launch":
            instead += f", or a new run with its weights: --from-run {shlex.quote(run)}"
        raise UserError(f"resume: {run} is a checkpoint of {found.path}: expected {instead}")
    return read_config(Run(run), CONFIGS[kind])


def _parse_start(options: type[Any], command: str, words: Sequence[str]) -> Any:
    """Some of a command's options, those of a class; other words are read later, and help is printed then."""
    others = [word for word in words if word not in ("-h", "--help")]
    start, _ = parse(options, f"compressive {command}", others, return_unknown_args=True)
    return start


def _require_fixed(config: Any, options: Any) -> None:
    """Raises a UserError if options of a resumed run change a field on which its checkpoints depend."""
    for name, old, new in differences(to_plain(config), to_plain(options.config)):
        if is_fixed(name, config.fixed):
            raise UserError(f"{name}: expected {old} as in {options.resume}, got {new}")


def is_fixed(name: str, fixed: Sequence[str]) -> bool:
    """Whether a field is one of `Configuration.fixed`, or in one of them."""
    return any(f"{name}.".startswith(f"{each}.") for each in fixed)


def _is_given(name: str, words: Sequence[str]) -> bool:
    """Whether an option is among the words of a command."""
    return any(_option(word) == f"--{name}" for word in words)


def _option(word: str) -> str:
    """The option in a word such as "--eval_env=ENV", as --help spells it; any other word is returned changed alike.

    tyro reads "_" in the name of an option as "-".
    """
    name, _, _ = word.partition("=")
    return name.replace("_", "-")


def _with_network(preset: str, other: RunConfig) -> RunConfig:
    """A preset with the network of a run, and with unrolls as long, since they hold whole segments of the core."""
    config = PRESETS["launch"](preset, core_name(other))
    actors = dataclasses.replace(config.actors, unroll_length=other.actors.unroll_length)
    return dataclasses.replace(config, agent=other.agent, actors=actors)


def _with_actors_for_tasks(options: LaunchOptions, words: Sequence[str]) -> LaunchOptions:
    """The options with as many actors as the run has tasks, if it has more and no number of actors is given."""
    from envs import tasks

    if _is_given("actors", words) or _is_given("actors.num-actors", words):
        return options
    with user_errors():
        most = max(len(tasks(env)) for env in options.environments)
        if most <= options.actors.num_actors:
            return options
        return dataclasses.replace(options, actors=dataclasses.replace(options.actors, num_actors=most))


ON_RAY = {
    "actors.in_flight",
    "actors.threads",
    "actors.cpus",
    "actors.resources",
    "actors.labels",
    "actors.placement",
    "learner_placement",
    "learner_labels",
}
"""Options that have no effect in one process."""


class _Need(NamedTuple):
    """Options that have an effect only under a condition.

    `names`: of their fields; one that ends with "*" stands for all that begin so. `missing`: what they have no effect
    with or without.
    """

    names: tuple[str, ...]
    is_met: Callable[[LaunchOptions], bool]
    missing: str


NEEDS = (
    _Need(
        ("learner.schedule_start", "schedule_frames"),
        lambda options: options.has_schedule,
        "without a schedule: --learner.learning-rate-schedule linear, --learner.entropy-cost-end or "
        "--learner.teacher-cost-end",
    ),
    _Need(("learner.popart_rate",), lambda options: options.learner.popart, "without --learner.popart"),
    _Need(
        ("learner.rmsprop_*",),
        lambda options: options.learner.optimizer == "rmsprop",
        "without --learner.optimizer rmsprop",
    ),
    _Need(("learner.adam_*",), lambda options: options.learner.optimizer == "adam", "without --learner.optimizer adam"),
    _Need(
        ("replay.unrolls", "replay.burn_in"), lambda options: options.replay.share > 0, "without --replay.share above 0"
    ),
    _Need(
        ("agent.reconstruction_height",),
        lambda options: options.agent.reconstruction_cost > 0,
        "without --agent.reconstruction-cost above 0",
    ),
    _Need(
        ("agent.prediction_steps",),
        lambda options: options.agent.prediction_cost > 0,
        "without --agent.prediction-cost above 0",
    ),
    _Need(
        ("learner_placement", "learner_labels"),
        lambda options: options.learners > 1,
        "without several learners (--learners)",
    ),
    _Need(("skip_missing_levels",), lambda options: options.resume is None, "with --resume"),
    _Need(
        ("skip_missing_levels",),
        lambda options: re.search(r"(^|,)dmlab:", options.env) is not None,
        "without levels of DeepMind Lab in --env",
    ),
    _Need(("local",), lambda options: not options.resident, "with --resident"),
    _Need(("actors.stagger",), lambda options: not options.resident, "with --resident"),
)
"""What options need to have an effect."""


def _require_effect(options: LaunchOptions, words: Sequence[str]) -> None:
    """Raises a UserError for an option that was typed and has no effect beside the others.

    Those that a preset has are no mistake, and neither are values that turn off what is off, such as none.
    """
    typed = [_option(word) for word in words if word.startswith("--")]
    for need in NEEDS:
        if need.is_met(options):
            continue
        for option in typed:
            name = option.removeprefix("--").replace("-", "_")
            is_meant = any(_is_named(name, pattern) for pattern in need.names)
            if is_meant and operator.attrgetter(name)(options):
                raise UserError(f"{option}: has no effect {need.missing}")


def _is_named(name: str, pattern: str) -> bool:
    """Whether a name is one of `_Need.names`, or is meant by it."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def parse_launch(words: Sequence[str]) -> LaunchOptions:
    """The options of `launch`; see `parse_train`. The code that a run names must be allowed."""
    options: LaunchOptions = parse_train("launch", words)
    if options.in_process:
        _require_no_cluster(options, words)
    _require_effect(options, words)
    if not _is_given("core", words):
        with user_errors():
            require_core(options, options.allow)
    if other := options.resume or options.like:
        _require_allowed(options, other, words)
    return options


def _require_no_cluster(options: LaunchOptions, words: Sequence[str]) -> None:
    """Raises a UserError for an option that has no effect in one process."""
    mode = "--resident"
    if options.local:
        mode = "--local"
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if name in ON_RAY:
            raise UserError(f"{mode} acts in this process, without a cluster: {word} has no effect there")


def _require_allowed(options: LaunchOptions, run: str, words: Sequence[str]) -> None:
    """Raises a UserError if the run that is resumed, or that a new one is like, names code or a place of checkpoints
    that the user did not name."""
    from envs import require_consent

    # What the user typed is allowed; what only the run says is not.
    allowed = [options.allow]
    if _is_given("env", words):
        allowed.append(options.env)
    if _is_given("stages", words):
        allowed.extend(options.environments[:-1])
    if _is_given("eval-env", words):
        allowed.append(options.eval_env)
    url: str | None = run
    if _is_given("checkpoint-url", words):
        url = options.checkpoint_url
    with user_errors():
        for env in options.named_environments:
            require_consent(env, *allowed)
        checkpoint_place(options, Run(run), options.allow, url)


def parse(kind: Any, prog: str, words: Sequence[str], **options: Any) -> Any:
    """`tyro.cli` with condensed error messages and abbreviated numbers."""
    _require_texts(words)
    message = io.StringIO()
    config = (tyro.conf.AvoidSubcommands,)
    try:
        args = list(_with_numbers_of_actors(words))
        with contextlib.redirect_stderr(message), _types:
            return tyro.cli(kind, prog=prog, args=args, config=config, **options)
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        problem = _with_words_as_typed(_condense(message.getvalue(), kind), words)
        raise UserError(f"{problem} (see {prog} --help)") from None


EXPECTED = {
    **dict.fromkeys(("resume", "like", "from-run", "run", "from"), "the folder of a run"),
    **dict.fromkeys(("env", "eval-env"), "an environment"),
    **dict.fromkeys(("folder", "out"), "a folder"),
    **dict.fromkeys(("csv", "video", "beside"), "a file"),
    **dict.fromkeys(("path", "corpus.path", "output"), "a path"),
    "ray-address": "an address",
    "checkpoint-url": "a URL",
    "allow": "an environment, a core or a URL",
    "minari": "a name",
    "": "a folder or a name",
}
"""What is expected in place of an empty text, by the name of the option; that of positional arguments is empty."""


def _require_texts(words: Sequence[str]) -> None:
    """Raises a UserError for an empty text where a name is expected, such as --run "$UNSET", and for a text that cannot
    be the name of a file."""
    option = ""
    for word in words:
        value = word
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if not equals:
                continue
        name = _option(option).removeprefix("--")
        if name not in EXPECTED:
            continue
        expected = f"{option or 'DIR'}: expected {EXPECTED[name]}"
        if not value:
            raise UserError(f"{expected}, got an empty text")
        if re.search(r"[\0\ud800-\udfff]", value):
            raise UserError(f"{expected} in UTF-8 without NUL, got {value!r}")


def _with_words_as_typed(message: str, words: Sequence[str]) -> str:
    """A message in which tyro may have broken quoted words behind their commas, with these words as they were typed."""
    for word in words:
        name, equals, value = word.partition("=")
        typed = value if equals and name.startswith("--") else word
        if "," not in typed:
            continue
        broken = ", ?".join(re.escape(part) for part in typed.split(","))
        as_typed = repr(typed)
        message = re.sub(f"'{broken}'", lambda _, as_typed=as_typed: as_typed, message)  # type: ignore[misc]
    return message


def _require_once(kind: Any, words: Sequence[str]) -> None:
    """Raises a UserError if an option of a training with several values is given twice: tyro forgets the first ones.

    Options of a comparison may be: `make compare ARGS='--seeds 0'` is meant to take the place of its own seeds.
    """
    typed = [_option(word) for word in words]
    for name, hint in _options(kind):
        times = typed.count(f"--{name}")
        if typing.get_origin(hint) is tuple and times > 1:
            raise UserError(f"{name}: expected once, with all values behind it (--{name} A B), got it {times} times")


def _with_numbers_of_actors(words: Sequence[str]) -> Iterator[str]:
    """The words with `--actors 4` and `--actors 4..16` written out as the two options that they stand for."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != "--actors":
            yield word
            continue
        if not equals:
            value = next(rest, "")
        numbers = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
        if not numbers:
            raise UserError(f"actors: expected a number, or two as in 4..16, got {value!r}")
        yield from ("--actors.num-actors", numbers[1], "--actors.max-actors", numbers[2] or "None")


def _condense(frame: str, kind: Any) -> str:
    """The first paragraph of tyro's message, which it draws in a frame, with options that may have been meant."""
    _, *lines = [line.strip("│ ") for line in frame.splitlines()]  # without the upper edge and its title
    if not lines[0].strip("-"):  # the frame of a terminal that is not UTF-8 has a line below the title
        lines = lines[1:]
    paragraphs = re.split(r"\n(?:[─-]*\n)+", "\n".join(lines))
    message = " ".join(paragraphs[0].split()).removesuffix(".")

    unknown = re.match(r"Unrecognized options: .*?--([\w.-]+)", message)
    if not unknown:
        # Without the name of the class of the options, and fields of a group as options of it.
        message = _as_expected(re.sub(r"^Error parsing (_?[A-Z]\w*: )?", "", message))
        group = re.match(r"([a-z][\w.]*): (\w+): expected", message)
        if not group:
            return message
        option = re.sub(r"_(?=\w)", "-", f"--{group[1]}.{group[2]}")  # but --learner.lambda_
        return f"{option}: expected{message[group.end() :]}"

    # Options whose words begin with the letters that were typed, and those that tyro proposes. --lr is matched with
    # "l", the rest of a word, "-" and "r".
    _, _, typed = unknown[1].rpartition(".")
    initials = r"\w*-".join(typed)
    meant = [f"--{name}" for name in option_names(kind) if re.search(rf"(^|\.){initials}\w*$", name)]
    meant += [line.split()[0].rstrip(",") for line in lines[1:] if re.match(r"--\w", line)]
    if not meant:
        return message
    return f"{message}; perhaps you meant {' or '.join(meant[:3])}"


_KINDS = {"INT": "an integer", "FLOAT": "a number", "STR": "a text", "PATH": "a path"}
"""Kinds of values, as help names them, in words."""


def _as_expected(message: str) -> str:
    """A message of tyro's own in the form of all others: OPTION: expected THIS, got THAT."""
    missing = re.match(r"Missing value for argument '([^']+)'\. Expected (\d+) values?$", message)
    if missing:
        option, count = missing.groups()
        return f"{option}: expected {'a value' if count == '1' else f'{count} values'}, got none"

    choice = re.match(r"invalid choice (.*) for argument '([^']+)'\. Expected one of \((.*)\)$", message)
    if choice:
        typed, option, choices = choice.groups()
        names = choices.replace("'", "").rstrip(",")
        return f"{option}: expected one of {names}, got {typed}"

    kinds = re.match(r"([^ ]+): no type matching (.+) could be instantiated from \[(.*)\]$", message)
    if kinds:
        option, names, typed = kinds.groups()
        kinds_in_words = [_KINDS.get(name, name.strip("{}").replace(",", ", ")) for name in names.split("|")]
        return f"{option}: expected {' or '.join(kinds_in_words)}, got {typed}"

    # Of an option with several values tyro names no kind.
    message = re.sub(r"Could not find valid parse for arguments: \[(.*)\]$", r"expected other values, got \1", message)
    return message.replace("could not convert string to float: ", "expected a number, got ")


def option_names(kind: Any) -> Iterator[str]:
    """Names of all options of a dataclass, as in "agent.core.memory-size", without those of positional arguments.

    A field that is on or off has two.
    """
    for name, hint in _options(kind):
        yield name
        if hint is bool:
            group, dot, own = name.rpartition(".")
            yield f"{group}{dot}no-{own}"


def _options(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The names of fields as options, each with its type; that of an option that may be given often is None."""
    for field, hint in typing.get_type_hints(kind, include_extras=True).items():
        # The mark before fields that are given by name alone, and what belongs to the class, are no options.
        if field == "_" or typing.get_origin(hint) is ClassVar:
            continue
        # What tyro is told of a field is in Annotated[TYPE, MARK, ...]; a mark may have another name for it.
        marks = getattr(hint, "__metadata__", ())
        if tyro.conf.Positional in marks or tyro.conf.Suppress in marks:
            continue
        if marks:
            hint = hint.__origin__
        given_names = [mark.name for mark in marks if getattr(mark, "name", None)]
        name = given_names[0] if given_names else field

        # A field that is a configuration, or one of several such as those of cores, has their options.
        members: tuple[Any, ...] = (hint,)
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            members = typing.get_args(hint)
        configurations = [member for member in members if dataclasses.is_dataclass(member)]
        for configuration in configurations:
            yield from _options(configuration, f"{prefix}{name}.")
        if configurations:
            continue

        # As tyro spells it: an underscore at the end, of a word that Python reserves, stays.
        spelled = prefix + re.sub(r"_(?!$)", "-", name)
        if tyro.conf.UseAppendAction in marks:
            hint = None
        yield spelled, hint
