"""Hostile options, run folders and corpora: every command ends, with one line if it fails, and writes strict JSON.

Cases are drawn with a fixed seed from options as each command's help lists them, and from the files that runs have.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import serialization
from tests.commands import cli
from tests.commands.fuzz import TIMES, fault, run_case

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fuzz")]

NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e400", "1e-320", "1e300", "0.5", str(2**64), str(10**12), "9" * 5000)
TEXTS = ("", "/", "x" * 300, "\udcff", "a\0b", "[]", "a\nb", "--", "FIFO", "🙂", "1:2:3", "meta", "~no-user/x")
WORK = ("frames", "episodes", "steps", "every", "length", "clips", "seconds", "rows", "tokens", "samples")
"""Ends of names of options for amounts of work: a trillion is a long run, and no error."""
VALUES: tuple[Any, ...] = (
    *(None, [], {}, "x", -1, 0, 0.5, 2**64, True, [[]]),
    *("a\0b", "\ud800", "x" * 300, float("nan"), float("inf")),
)

LAUNCH = [*cli.TINY, "--local", "--env=diagnostic:recall", "--frames=32", "--eval-episodes=1", "--keep-checkpoints=1"]
SAMPLE = ["--seconds=0.01", "--prompt-seconds=0.01", "--clips=1"]
COMMANDS = {
    "launch": [*LAUNCH, "--run=NEW"],
    "evaluate": ["RUN", "--episodes=1", "--json"],
    "visualize": ["RUN", "--episodes=1"],
    "report": ["RUN", "--episodes=1"],
    "compare": ["--cores=lstm", "--seeds=0", *LAUNCH, "--folder=NEW"],
    "status": ["RUN"],
    "text train": [*cli.COMPRESSIVE_TEXT, "--path=TEXTS", "--run=NEW", "--learner.steps=1", "--keep-checkpoints=1"],
    "text evaluate": ["TEXT"],
    "text sample": ["TEXT", "--length=5"],
    "speech train": [*cli.TINY_SPEECH, "--corpus.path=VOICES", "--run=NEW", "--keep-checkpoints=1"],
    "speech evaluate": ["SPEECH"],
    "speech sample": ["SPEECH", *SAMPLE],
    "images train": [*cli.TINY_IMAGES, "--corpus.path=PICTURES", "--run=NEW", "--keep-checkpoints=1"],
    "images evaluate": ["IMAGES"],
    "images sample": ["IMAGES", "--images=1"],
}
"""Arguments with which each command ends soon; names in capitals are those of `place`."""
READERS = {
    "RUN": ["status", "report --episodes=1", "evaluate --episodes=1 --json", "visualize --episodes=1",
            "launch --local --resume", "compare --folder=NEW --from"],
    "TEXT": ["status", "text evaluate", "text sample --length=5", "text train --resume"],
    "SPEECH": ["status", "speech evaluate", " ".join(["speech sample", *SAMPLE]), "speech train --resume"],
    "IMAGES": ["status", "images evaluate", "images sample --images=1", "images train --resume"],
}  # fmt: skip
"""Commands that read a run, by its kind."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny finished run of each kind and their corpora."""
    root = tmp_path_factory.mktemp("fuzz")
    cli.write_corpus("text", root / "TEXTS")
    cli.write_corpus("speech", root / "VOICES")
    cli.write_corpus("images", root / "PICTURES")
    os.mkfifo(root / "FIFO")
    for kind in READERS:
        command = "launch" if kind == "RUN" else f"{kind.lower()} train"
        outcome = run_case([*command.split(), *(word.replace("NEW", kind) for word in COMMANDS[command])], root)
        assert outcome.status == 0, outcome.err
    return root


@pytest.fixture
def place(runs: Path, tmp_path: Path) -> Path:
    """A folder where cases run, with links to the content of `runs`."""
    for name in ("RUN", "TEXT", "SPEECH", "IMAGES", "TEXTS", "VOICES", "PICTURES", "FIFO"):
        (tmp_path / name).symlink_to(runs / name)
    return tmp_path


Case = tuple[str, list[str], Path | None]
"""A name, the arguments, and a damaged file, which need not be JSON."""


def check(cases: Iterable[Case], place: Path, least: int) -> None:
    """Runs cases, at least so many, and names those that end badly."""
    faults = []
    count = 0
    for name, arguments, damaged in cases:
        count += 1
        if found := fault(run_case(arguments, place), place, damaged):
            faults.append(f"{name:.80}: {found:.300}")
        shutil.rmtree(place / "NEW", ignore_errors=True)
    assert not faults, "\n".join([f"{len(faults)} of {count}:", *faults])
    assert count >= least


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd values for each option: a number and a text where it takes numbers. An option that takes none gets one."""
    monkeypatch.setenv("COLUMNS", "80")  # help has one option below the other
    out = run_case([*command.split(), "--help"], place).out
    # One space is before what an option takes, two or more before its description.
    options = re.findall(r"^│ (--[a-z][\w.-]+)(?: (\S[^\n│]*?))?(?: {2,}[^\n│]*)? *│$", out, re.MULTILINE)

    def odd_values(name: str, takes: str) -> list[str]:
        if not takes:
            return ["x"]
        draw = random.Random(f"{command} {name}")

        def sample(values: Sequence[str]) -> list[str]:
            return draw.sample(values, min(TIMES, len(values)))

        if "INT" in takes or "FLOAT" in takes:
            return [*sample(NUMBERS), *sample(TEXTS)]
        return sample(TEXTS)

    def takes_long(name: str, value: str) -> bool:
        is_much_work = name.endswith(WORK) and value == str(10**12)
        is_all_files = name.endswith("path") and value == "/"
        return is_much_work or is_all_files

    def cases() -> Iterable[Case]:
        for name, takes in options:
            for value in odd_values(name, takes):
                if not takes_long(name, value):
                    yield f"{name}={value!r}", [*command.split(), *COMMANDS[command], f"{name}={value}"], None

    check(cases(), place, least=0 if command == "status" else 4)


def write(content: str | bytes) -> Callable[[Path], Any]:
    """Returns a function that writes a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def sparse(path: Path) -> None:
    """Makes a file of 2 GiB of zeros that takes no place on the disk."""
    with path.open("wb") as file:
        file.truncate(2 << 30)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": write(""),
    "binary": write(bytes(range(256)) * 20),
    "NUL": write("\0" * 5000),
    "not UTF-8": write(b"\xff\xfeword \xe9t\xe9\n" * 300),
    "null": write("null"),
    "list": write("[]"),
    "object": write("{}\n"),
    "number": write("1e999\n"),
    "digits": write("9" * 5000),
    "not finite": write('{"step": NaN, "time": Infinity, "learner/frames": NaN}\n'),
    "deep": write("[" * 100_000),
    "huge": sparse,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path),
    "FIFO": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda path: None,
}
"""What replaces a file of a run or a corpus; "half" of it and changed values of JSON are made from it."""
CORPUS_DAMAGES = [how for how in DAMAGES if how != "huge"]  # a corpus may be huge


def damage(path: Path, how: str) -> None:
    """Replaces a file: "half" keeps the first half of its bytes, others are of `DAMAGES`."""
    before = path.read_bytes()
    path.unlink()
    if how == "half":
        path.write_bytes(before[: len(before) // 2])
    else:
        DAMAGES[how](path)


def change(path: Path, draw: random.Random) -> str:
    """Replaces a value of a JSON file, corrects its digest if it has one, and returns what it did."""
    content = json.loads(path.read_text())
    digest = content.pop("sha256", None)

    # Goes down into the content at random.
    node = content
    key = draw.choice(list(content))
    while isinstance(node[key], dict | list) and node[key] and draw.random() < 0.8:
        node = node[key]
        key = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
    node[key] = draw.choice(VALUES)

    if digest is not None:
        content["sha256"] = serialization.digest(content)
    path.write_text(json.dumps(content))
    return f"{key} = {node[key]!r:.30}"


@pytest.mark.parametrize("kind", READERS)
def test_run_folders(kind: str, runs: Path, place: Path) -> None:
    """A damaged file, or one of four changed values of a JSON file, and a command that reads the run."""
    files = [path for path in (runs / kind).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(runs / kind)) for path in files)
    names = [name for name in names if name.endswith((".json", ".jsonl", ".safetensors", ".lock"))]
    draw = random.Random(kind)

    def cases() -> Iterable[Case]:
        for name in names:
            damages = [*DAMAGES, "half"]
            if kind != "RUN":  # the same code reads all kinds: three are enough for the others
                damages = draw.sample(damages, min(3 * TIMES, len(damages)))
            if name.endswith(".json"):
                damages += ["change"] * 4 * TIMES
            for how in damages:
                shutil.rmtree(place / "COPY", ignore_errors=True)
                shutil.copytree(runs / kind, place / "COPY", ignore=shutil.ignore_patterns("events.*"))
                path = place / "COPY" / name
                changed = ""
                if how == "change":
                    changed = change(path, draw)
                else:
                    damage(path, how)
                command = draw.choice(READERS[kind])
                yield f"{name}, {how} {changed}, {command}", [*command.split(), "COPY"], path.absolute()

    check(cases(), place, least=100 if kind == "RUN" else 40)


@pytest.mark.parametrize(
    ("command", "corpus", "option", "odd"),
    [
        ("text train", "TEXTS", "--path", "7.txt"),
        ("speech train", "VOICES", "--corpus.path", "1.wav"),
        ("images train", "PICTURES", "--corpus.path", "1.png"),
    ],
)
def test_corpora(command: str, corpus: str, option: str, odd: str, runs: Path, place: Path) -> None:
    """One damaged file, beside others or alone; alone it is given as its folder and as a file."""
    header = (runs / "VOICES" / "1.wav").read_bytes()[:44]
    channels = 22  # where a WAV header has their number
    three_channels = header[:channels] + b"\3" + header[channels + 1 :] + bytes(3000)
    copy = place / "COPY"
    file = copy / odd

    def cases() -> Iterable[Case]:
        for how in [*CORPUS_DAMAGES, "half", "header", "three channels"]:
            for alone in (False, True):
                shutil.rmtree(copy, ignore_errors=True)
                if alone:
                    copy.mkdir()
                    shutil.copy(runs / corpus / odd, file)
                else:
                    shutil.copytree(runs / corpus, copy)

                if how == "header":
                    file.write_bytes(header)
                elif how == "three channels":
                    file.write_bytes(three_channels)
                else:
                    damage(file, how)

                places = ["COPY", f"COPY/{odd}"] if alone else ["COPY"]
                for given in places:
                    arguments = [*command.split(), *COMMANDS[command], f"{option}={given}"]
                    yield f"{odd}, {how}, in {given}, alone: {alone}", arguments, None

    check(cases(), place, least=50)


NAMED = {"enwik8": "enwik8", "wikitext103": "wiki.train.tokens", "pg19": "train", "folder": "\udcff.txt"}
"""By corpus: a file that it has. The name of the last one is not UTF-8."""


@pytest.mark.parametrize(("corpus", "name"), NAMED.items())
def test_named_corpora(corpus: str, name: str, runs: Path, place: Path) -> None:
    def cases() -> Iterable[Case]:
        for how in CORPUS_DAMAGES:
            shutil.rmtree(place / "COPY", ignore_errors=True)
            (place / "COPY").mkdir()
            DAMAGES[how](place / "COPY" / name)
            arguments = ["text", "train", *COMMANDS["text train"], f"--corpus={corpus}", "--path=COPY"]
            yield f"{name!r}, {how}", arguments, None

    check(cases(), place, least=len(CORPUS_DAMAGES))
