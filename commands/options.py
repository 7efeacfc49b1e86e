"""From the words of a command line to a dataclass of options, by tyro; what is wrong with them is said in one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from commands import UserError


@dataclass(frozen=True)
class Start:
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
    lines = [line.strip().strip("│|").strip() for line in frame.splitlines() if line.strip()[:1] in "│|"]
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n(?:[─-]*\n)+", "\n".join(lines))]
    message = re.sub(r"^Error parsing (\w*Options: )?", "", paragraphs[0]).removesuffix(".")
    options = [line for line in lines[1:] if line.startswith("--")]
    if options and paragraphs[0].startswith("Unrecognized"):
        return f"{message}; perhaps you meant {' or '.join(options)}"
    if options and (found := re.match(r"(--\S+): .*'([^']*)'\]?$", message)):
        option, value = found.groups()
        return f"{option}: expected {options[0].removeprefix(option).strip()}, got {value!r}"
    return message
