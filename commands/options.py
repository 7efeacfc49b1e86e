"""From the words of a command line to a dataclass of options, by tyro. Errors are one line."""

import contextlib
import dataclasses
import difflib
import io
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from actors import ActorsConfig
from agent.fields import Above0, Checked, Positive, Threads
from learner.checkpoints import StorageError
from training import UserError
from training.config import RENAMED, core_name, differences, read_config, to_plain
from training.run import Run

FLAGS = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)
"""How the options of commands that train are written."""
RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
NewFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
_COUNTS = re.compile(r"--[\w.-]*(frames|steps|step|start|samples|tokens|every|length|episodes|vocabulary|size)")
"""Options whose numbers may be written as 6M, 200k or 1e6."""


@dataclass(frozen=True)
class Start(Checked):
    """The options that decide the defaults of all others."""

    preset: str = "cpu"
    core: str = "compressive"
    resume: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Checked):
    """What belongs to one launch of a training rather than to the run."""

    core: str = "compressive"
    """Recurrent core; a wrong name lists those that exist."""
    run: NewFolder = None
    """Folder of the run, new or empty; if not given, a new one in runs/, named after date, time and core."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Resume the run in this folder from its last readable checkpoint; most values may be changed."""
    threads: Threads = 1
    """CPU threads of a learner."""

    def config_of(self, kind: type) -> Any:
        """What belongs to the run: the configuration of a class that these options inherit."""
        return kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(kind)})


def parse_start(prog: str, arguments: Sequence[str]) -> Start:
    """Reads the options of `Start` alone.

    Raises:
        UserError: see `parse`.
    """
    known = [argument for argument in arguments if argument not in ("-h", "--help")]
    return parse(Start, prog, known, return_unknown_args=True)[0]


def parse_training(
    kind: Any,
    prog: str,
    arguments: Sequence[str],
    make_preset: Callable[[str, str], Any],
    fixed: tuple[str, ...],
    read: Callable[[str], Any] | None = None,
) -> Any:
    """The options of a command that trains, with the defaults of its preset and core, or of the resumed run.

    Args:
        kind: the options: a subclass of a configuration and of `TrainingOptions`.
        prog: the command.
        arguments: the words behind it.
        make_preset: the configuration of a preset and a core.
        fixed: prefixes of the names of fields that a resumed run cannot change.
        read: the configuration of the run to resume; by default that of the folder.

    Raises:
        UserError: if a value is impossible.
    """
    start = parse_start(prog, arguments)
    base = next(parent for parent in kind.__mro__ if "kind" in vars(parent))  # the class of the configuration
    with user_errors():
        if start.resume:
            config = read(start.resume) if read else read_config(Run(start.resume), base)
        else:
            config = make_preset(start.preset, start.core)
    core = core_name(config) if start.resume else start.core
    defaults = {field.name: getattr(config, field.name) for field in dataclasses.fields(base)}
    options = parse(kind, prog, arguments, default=kind(**defaults, core=core), config=FLAGS)
    if options.resume:
        if options.core != core:
            raise UserError(f"core: expected {core} as in {options.resume}, got {options.core}")
        for name, old, new in differences(to_plain(config), to_plain(options.config_of(base))):
            if name.startswith(fixed):
                raise UserError(f"{name}: expected {old} as in {options.resume}, got {new}")
    return options


@contextlib.contextmanager
def user_errors(option: str = "") -> Iterator[None]:
    """Turns errors that the user can correct into a UserError, which names the option if one is given."""
    try:
        yield
    except (ValueError, ImportError, OSError, StorageError) as error:
        raise UserError(f"{option}: {error}" if option else str(error)) from error


def parse(
    kind: Any,
    prog: str,
    arguments: Sequence[str],
    config: tuple[Any, ...] = (tyro.conf.FlagCreatePairsOff,),
    **options: Any,
) -> Any:
    """`tyro.cli` with condensed error messages, abbreviated numbers and the option names of version 0.1.

    Raises:
        UserError: names the option, what was expected and what was given.
    """
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(kind, prog=prog, args=_normalize(arguments), config=config, **options)
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        raise UserError(f"{_condense(message.getvalue(), kind)} (see {prog} --help)") from None


def _normalize(arguments: Sequence[str]) -> list[str]:
    """The arguments with numbers such as 6M written out, and with today's names for yesterday's options."""
    words: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            *groups, last = name.removeprefix("--").split(".")
            last = RENAMED.get(last.replace("-", "_"), last).replace("_", "-")
            last = "lambda_" if last == "lambda-" else last  # tyro keeps the last one of lambda_
            name = "--" + ".".join([*groups, last])
            word = name + equals + (_number(value) if _COUNTS.fullmatch(name) else value)
        elif words and _COUNTS.fullmatch(words[-1]):
            word = _number(word)
        words.append(word)
    return words


def _number(text: str) -> str:
    """6M, 200k and 1e6 as whole numbers; any other text unchanged."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)([kKmMgGbB]?)", text)
    if not found or re.fullmatch(r"\d+", text):
        return text
    value = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}[found[2].lower()]
    return str(int(value)) if value.is_integer() else text


def _condense(frame: str, kind: Any) -> str:
    """The first paragraph of a framed message, with the option that it is about or that may have been meant."""
    # The frame of a terminal that is not UTF-8 has no sides, and a line between title and text.
    lines = [line.strip().strip("│").strip() for line in frame.splitlines()][1:]
    lines = lines[1:] if lines and not lines[0].strip("-") else lines
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n(?:[─-]*\n)+", "\n".join(lines))]
    message = re.sub(r"^Error parsing (\w*Options: )?", "", paragraphs[0]).removesuffix(".")
    options = [line for line in lines[1:] if re.match("--[a-z]", line)]
    if paragraphs[0].startswith("Unrecognized"):
        unknown = re.search(r"--[\w.-]+", message)
        options = options or _similar(unknown[0], kind) if unknown else options
        return f"{message}; perhaps you meant {' or '.join(options)}" if options else message
    if options and (found := re.match(r"(--\S+): .*'([^']*)'\]?$", message)):
        option, value = found.groups()
        return f"{option}: expected {options[0].removeprefix(option).strip()}, got {value!r}"
    return message


def _similar(option: str, kind: Any) -> list[str]:
    """Options that an unknown one may stand for: with the same initials, as --lr, or spelled alike."""
    wanted, names = option.removeprefix("--").rpartition(".")[2], list(dict.fromkeys(option_names(kind)))
    lasts = {name: name.rpartition(".")[2] for name in names}
    initials = [name for name, last in lasts.items() if "".join(part[0] for part in last.split("-")) == wanted]
    close = difflib.get_close_matches(wanted, lasts.values(), 2)
    return [f"--{name}" for name in initials or [name for name, last in lasts.items() if last in close]][:3]


def option_names(kind: Any, prefix: str = "") -> Iterator[str]:
    """Names of all options of a dataclass, as in "agent.core.memory-size"."""
    for name, hint in typing.get_type_hints(kind).items():
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        groups = [part for part in parts if dataclasses.is_dataclass(part)]
        for group in groups:
            yield from option_names(group, f"{prefix}{name}.")
        if not groups:
            yield f"{prefix}{name.strip('_')}".replace("_", "-")


AllowEnv = Annotated[str | None, tyro.conf.arg(metavar="ENV")]


@dataclass(frozen=True, kw_only=True)
class PlayOptions(Checked):
    """What is common to commands that play episodes with the agent of a run."""

    allow_env: AllowEnv = None
    """Run the code of this environment, such as dm:my_module:Env, if the run names it; several are joined by commas.
    Environments that come with this program or are installed need no permission."""
    step_seconds: Annotated[Above0 | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Longest time that a step or reset of the environments may take; if not given, the run's own."""
    max_episode_steps: Annotated[Positive | None, tyro.conf.arg(metavar="INT")] = None
    """Agent steps of an episode beyond which it is an error, as it would never end; if not given, the run's own."""

    def limits(self, actors: ActorsConfig) -> ActorsConfig:
        """A run's configuration with the limits that are given here."""
        given: dict[str, Any] = {"step_seconds": self.step_seconds, "max_episode_steps": self.max_episode_steps}
        return dataclasses.replace(actors, **{name: value for name, value in given.items() if value is not None})
