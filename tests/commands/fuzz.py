"""Runs a command in a forked process and checks how it ended: status, output, and the JSON that it wrote.

The fork server of `multiprocessing` imports the commands once, so a case costs a fork.
"""

import json
import math
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commands import COMMANDS

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""How many times as many cases are drawn; there are few enough by default to run with every change."""
SECONDS = 20.0
"""A case that takes longer hangs; most take 0.02 to 0.7."""
MEMORY = 8 << 30
"""Bytes of address space of a case, so that none fills the machine."""
LONGEST = 2100
"""Characters of a message that can still be read."""
PRELOADED = [
    "tests.commands.fuzz",
    *(f"commands.{name}" for name in set(COMMANDS.values())),
    *("soundfile", "torch.utils.tensorboard", "torch._dynamo"),
]


class Outcome(NamedTuple):
    """How a command ended. status: None if it hung, negative if a signal ended it."""

    status: int | None
    out: str
    err: str


def run_case(arguments: Sequence[str], folder: Path, seconds: float = SECONDS) -> Outcome:
    """Runs a command in a folder, where `stdout` and `stderr` are left, and nowhere else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(list(arguments), str(folder), dict(os.environ)))
    process.start()
    process.join(seconds)
    status = process.exitcode
    if process.is_alive():
        status = None
        process.kill()
        process.join()
    out = (folder / "stdout").read_text(errors="surrogateescape")
    err = (folder / "stderr").read_text(errors="surrogateescape")
    return Outcome(status, out, err)


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """The forked process: the terminal is two files, and there is no Ray."""
    os.chdir(folder)
    os.environ.update(environment)
    for number, name, mode in ((0, os.devnull, "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        with open(name, mode) as file:
            os.dup2(file.fileno(), number)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w")  # noqa: SIM115

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.modules["ray"] = None  # importing it is an ImportError
    from commands import main
    from envs.processes import limit_cores

    limit_cores(1)  # environments have processes only where a case asks for them: starting one takes seconds
    main(arguments)


def fault(outcome: Outcome, folder: Path, damaged: Path | None = None) -> str | None:
    """What is wrong with how a command ended in a folder; None if nothing is. `damaged` need not be JSON."""
    lines = outcome.err.rstrip("\n").split("\n")
    last = lines[-1]
    if outcome.status is None:
        return "hung"
    if outcome.status not in (0, 1, 2):
        return f"status {outcome.status}: {last}"
    if "Traceback (most recent call last)" in outcome.err:
        return f"traceback: {last}"

    # A command that fails says why in its last line.
    if outcome.status != 0:
        ours = [line for line in lines if line.startswith("compressive: ")]
        if ours != [last]:
            return f"expected one line at the end, got {lines[-3:]}"
        is_empty = re.match(r"compressive: *(\(see|$)", last)
        if is_empty or len(last) > LONGEST:
            return f"a message of {len(last)} characters: {last[:80]}"

    # JSON in files, in rows of files, and in the output of `evaluate --json`.
    written = [path for path in folder.rglob("*.json*") if path.is_file() and path != damaged]
    texts = [path.read_text() for path in written if path.suffix == ".json"]
    texts += [line for path in written if path.suffix == ".jsonl" for line in path.open()]
    if outcome.out.startswith("[\n"):
        texts.append(outcome.out)
    for text in texts:
        try:
            strict_json(text)
        except ValueError as error:
            return f"not JSON ({error}): {text[:80]}"
    return None


def strict_json(text: str) -> Any:
    """Raises a ValueError if a text is not JSON as in RFC 8259, which has no NaN and no Infinity."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits} is not finite")
        return float(digits)

    return json.loads(text, parse_constant=refuse, parse_float=number)
