"""From the words of a command line to a dataclass of options, by tyro; what is wrong with them is said in one line."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from actors import ActorsConfig
from agent.fields import Above0, Checked, Positive
from training import UserError
from training.config import differences

FLAGS = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)
"""How options of commands that train are written."""


@dataclass(frozen=True)
class Start(Checked):
    """What decides the defaults of all other options."""

    preset: str = "cpu"
    core: str = "compressive"
    resume: str | None = None


def parse_start(prog: str, arguments: Sequence[str]) -> Start:
    """Reads these few first, whatever else the command line says.

    Raises:
        UserError: see `parse`.
    """
    known = [argument for argument in arguments if argument not in ("-h", "--help")]
    return parse(Start, prog, args=known, return_unknown_args=True)[0]


def parse_training(
    kind: type,
    prog: str,
    arguments: Sequence[str],
    read: Callable[[str], Any],
    make_preset: Callable[[str, str], Any],
    plain: Callable[[Any], dict[str, Any]],
    fixed: tuple[str, ...],
) -> Any:
    """The options of a command that trains, with the defaults of its preset and core, or of the resumed run.

    Args:
        kind: of the options: the configuration's fields, `config`, core, run, resume and threads.
        prog: the command.
        arguments: what was said after it.
        read: the configuration of a run; configurations know their core_name.
        make_preset: the configuration of a preset and a core.
        plain: a configuration as JSON can hold it.
        fixed: beginnings of the names of what a resumed run cannot change.

    Raises:
        UserError: if a value is impossible.
    """
    start = parse_start(prog, arguments)
    with user_errors():
        config = read(start.resume) if start.resume else make_preset(start.preset, start.core)
    core = config.core_name if start.resume else start.core
    options = parse(kind, prog, args=arguments, default=kind(**vars(config), core=core), config=FLAGS)
    if options.run and options.resume:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.resume:
        if options.core != core:
            raise UserError(f"core: expected {core} as in {options.resume}, got {options.core}")
        for name, old, new in differences(plain(config), plain(options.config)):
            if name.startswith(fixed):
                raise UserError(f"{name}: expected {old} as in {options.resume}, got {new}")
    return options


@contextlib.contextmanager
def user_errors(option: str = "") -> Iterator[None]:
    """Turns what a user can mend into a UserError, which names the option if one is given."""
    try:
        yield
    except (ValueError, FileNotFoundError, ImportError, OSError) as error:
        raise UserError(f"{option}: {error}" if option else str(error)) from error


def parse(kind: type, prog: str, **options: Any) -> Any:
    """`tyro.cli`, with its framed error messages condensed.

    Raises:
        UserError: names the option, what was expected and what was given.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=prog, **options)
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        raise UserError(f"{_condense(said.getvalue())} (see {prog} --help)") from None


def _condense(frame: str) -> str:
    """The first paragraph of a framed message, with the option that it is about or that may have been meant."""
    # The frame of a terminal that is not UTF-8 has no sides, and a line between title and text.
    lines = [line.strip().strip("│").strip() for line in frame.splitlines()][1:]
    lines = lines[1:] if lines and not lines[0].strip("-") else lines
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n(?:[─-]*\n)+", "\n".join(lines))]
    message = re.sub(r"^Error parsing (\w*Options: )?", "", paragraphs[0]).removesuffix(".")
    options = [line for line in lines[1:] if re.match("--[a-z]", line)]
    if options and paragraphs[0].startswith("Unrecognized"):
        return f"{message}; perhaps you meant {' or '.join(options)}"
    if options and (found := re.match(r"(--\S+): .*'([^']*)'\]?$", message)):
        option, value = found.groups()
        return f"{option}: expected {options[0].removeprefix(option).strip()}, got {value!r}"
    return message


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
