"""Hostile options, run folders and corpora: every command ends, with one line if it fails, and writes strict JSON."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from speech import audio, synthetic
from tests.commands import cli
from tests.commands.fuzz import fault, run_case
from tests.commands.test_speech import TINY as TINY_SPEECH
from tests.commands.test_text import COMPRESSIVE as TINY_TEXT

pytestmark = pytest.mark.slow

NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e400", "1e-320", "0.5", str(2**64), str(10**12), "9" * 5000)
TEXTS = ("", "/", "x" * 300, "\udcff", "a\0b", "[]", "a\nb", "--", "/dev/zero", "FIFO", "🙂")
WORK = ("frames", "episodes", "steps", "every", "length", "clips", "seconds", "rows", "tokens", "samples")
"""Ends of the names of options that say how much is to be done: to ask for a trillion is a long run, no mistake."""

LAUNCH = [*cli.TINY, "--local", "--env=diagnostic:recall", "--frames=32", "--eval-episodes=1"]
COMMANDS = {
    "launch": [*LAUNCH, "--run=NEW"],
    "evaluate": ["RUN", "--episodes=1", "--json"],
    "visualize": ["RUN", "--episodes=1"],
    "report": ["RUN", "--episodes=1"],
    "compare": ["--cores=lstm", "--seeds=0", *LAUNCH[1:], "--folder=NEW"],
    "status": ["RUN"],
    "text train": [*TINY_TEXT, "--path=TEXTS", "--run=NEW", "--learner.steps=1"],
    "text evaluate": ["TEXT"],
    "text sample": ["TEXT", "--length=5"],
    "speech train": [*TINY_SPEECH, "--corpus.path=VOICES", "--run=NEW"],
    "speech evaluate": ["SPEECH"],
    "speech sample": ["SPEECH", "--seconds=0.01", "--prompt-seconds=0.01", "--clips=1"],
    # The folder has a run of another seed, so that nothing is trained.
    "speech compare": ["--run=COMPARED", *TINY_SPEECH[:4], "--corpus.path=VOICES", "--seed=1"],
}
"""Arguments with which each command soon ends; names in capitals are in the folder where it runs."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny finished run of each kind and what they were trained on."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "TEXTS").mkdir()
    for index in range(30):
        (root / "TEXTS" / f"{index}.txt").write_text(f"def function_{index}(x):\n    return x + {index}\n" * 20)
    (root / "VOICES").mkdir()
    for number in range(4):
        audio.write_wav(root / "VOICES" / f"{number}.wav", synthetic.utterance(0, number)[:1000], 4000)
    os.mkfifo(root / "FIFO")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for name in ("launch", "text train", "speech train"):
            folder = root / name.partition(" ")[0].upper().replace("LAUNCH", "RUN")
            arguments = [word.replace("NEW", folder.name) for word in COMMANDS[name]]
            outcome = run_case([*name.split(), *arguments], root)
            assert outcome.status == 0, outcome.err
    shutil.copytree(root / "SPEECH", root / "COMPARED" / "compressive")
    return root


@pytest.fixture
def place(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one test, in which cases run, with what `runs` has as links."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs / "cache"))
    for name in ("RUN", "TEXT", "SPEECH", "COMPARED", "TEXTS", "VOICES", "FIFO"):
        (tmp_path / name).symlink_to(runs / name)
    return tmp_path


def options(command: str, place: Path) -> list[tuple[str, str]]:
    """Every option of a command and what it takes, as its help has them."""
    os.environ["COLUMNS"] = "80"  # one below the other
    helped = run_case([*command.split(), "--help"], place)
    os.environ["COLUMNS"] = "200"
    return re.findall(r"^│ (--[a-z][\w.-]+) *([^\n│]*?) *│$", helped.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command: str, place: Path) -> None:
    faults = []
    names = options(command, place)
    assert len(names) >= {"status": 0, "report": 2}.get(command, 3)
    count = 0
    for name, takes in names:
        draw = random.Random(f"{command} {name}")
        numeric = "INT" in takes or "FLOAT" in takes
        values = (*NUMBERS, *draw.sample(TEXTS, 3)) if numeric else TEXTS if takes else ("0", "x")
        for value in values:
            if name.endswith(WORK) and value == str(10**12):
                continue
            count += 1
            arguments = [*command.split(), *COMMANDS[command], f"{name}={value}"]
            outcome = run_case(arguments, place)
            if found := fault(outcome, place):
                faults.append(f"{name}={value!r:.40}: {found}")
            shutil.rmtree(place / "NEW", ignore_errors=True)
    assert not faults, "\n".join([f"{len(faults)} of {count}:", *faults])
