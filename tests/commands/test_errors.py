"""Bad input ends with one line that names it and status 2: what was typed, a run of another version, damage."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from commands import main
from storage import checkpoints
from tests.commands.cli import TINY, Commands, run, saved_steps
from tests.learner.runs import forge

Copied = Callable[..., Path]
RESUME = ["launch", "--local", "--resume"]

TYPED: dict[str, list[tuple[str, str]]] = {
    "": [
        ("lunch", "expected a command out of launch, evaluate, "),
        ("lunch", "got 'lunch' (perhaps you meant launch)"),
        ("text learn", "expected train, evaluate, sample, got 'learn'"),
    ],
    "launch": [
        (
            "--preset gpu",
            "preset: expected one of cpu, general, level, transfer, memory, paper, paper-recall, "
            "dmlab30, minigrid-pixels, popgym, got 'gpu'",
        ),
        ("--env gym:CartPol-v1", "Did you mean"),
        ("--env rooms:small,rooms:full", "[72, 96, 3]"),
        ("--env rooms:small,rooms:small,action_repeat=2", "2 frames a step"),
        (
            "--env rooms:small,rooms:small,spin_seconds=4,rooms:small,spin_seconds=3 --actors 2",
            "actors: expected at least 3 (--actors), one a task",
        ),
        ("--preset paper --local", "--env rooms:full"),
        ("--actors.unroll-length 24", "unroll_length: expected a multiple of the core's segment_size = 16, got 24"),
        ("--agent.core.mlp-size 16777216 --agent.core.num-layers 900", "memory of"),
        ("--agent.core.memory-size 16777216 --actors.envs-per-actor 9999", "GB for state"),
        ("--core lstm --agent.core.memory-size 3", "--agent.core.memory-size"),
        ("--frames many", "--frames: expected an integer, such as 64, 200k or 6M, got 'many'"),
        ("--max-policy-lag " + "9" * 5000, "999 ... 999"),
        ("--learner.optimizer sgd", "--learner.optimizer: expected one of adam, rmsprop, got 'sgd'"),
        ("--learner.clip-rho nothing", "--learner.clip-rho: expected none or a number, got 'nothing'"),
        ("--learner.discount high", "--learner.discount: expected a number, got 'high'"),
        ("--learner.discount --local", "--learner.discount: expected a value, got none"),
        ("--local --actors.in-flight=2", "--actors.in-flight=2 has no effect there"),
        ("--local --learner-placement=spread", "--learner-placement=spread has no effect there"),
        ("--local --learner.device meta", "'meta'"),
        ("--learners 0", "compressive: learners: expected 1 or more, got 0"),
        ("--learners 3", "learners: expected a divisor of the 32 rows"),
        ("--learner.lambda_ 2", "--learner.lambda_: expected a number in [0, 1], got 2.0"),
        ("--learners 2 --learner.device cuda:1", "device: expected auto, cpu or cuda for 2 learners"),
        ("--local --learners 2", "expected --learners 1, got 2"),
        ("--actors few", "actors: expected a number, or two as in 4..16, got 'few'"),
        ("--actors=4..2", "--actors.max-actors: expected at least num_actors = 4, got 2"),
        ("--actors.resources memory=inf", "resources: expected NAME=AMOUNT, got 'memory=inf'"),
        ("--local --env diagnostic:recall,reward=much", "reward: expected a number, got 'much'"),
        ("--local --actors 2..4", "expected one number of actors, got 2..4"),
        ("--local --actors.gpus 1", "gpus: expected 0 for actors in this process"),
        ("--stages 'A until frames 3' --stages 'B until frames 3'", "stages: expected once, with all values behind it"),
        ("--framez 3", "perhaps you meant --frames"),
        ("--lr 3", "perhaps you meant --learner.learning-rate"),
        ("runs/a", "runs/a"),
        ("--local --ray-address 10.0.0.1:1", "give only one of them"),
        ("--run NEW --resume RUN", "give only one of them"),
        ("--run 'a\0b'", r"a\x00b"),
        ("--run '\udcff'", r"--run: expected the folder of a run in UTF-8 without NUL, got '\udcff'"),
        ("--run " + "x" * 256, "File name too long"),
        ("--run FULL", "--resume FULL"),
        ("--run FULL/thesis.txt", "run: expected a new folder, and FULL/thesis.txt is a file"),
        ("--run=", "--run: expected the folder of a run, got an empty text"),
        ("--from-run ''", "--from-run: expected the folder of a run, got an empty text"),
        ("--eval-env ''", "--eval-env: expected an environment, got an empty text"),
        ("--ray-address ''", "--ray-address: expected an address, got an empty text"),
        ("--eval-env nonsense", "eval_env: environment 'nonsense': expected 'kind:name'"),
        ("--env rooms", "env: environment 'rooms': expected 'kind:name'"),
        ("--stages 'rooms until frames 9'", "stages: environment 'rooms': expected 'kind:name'"),
        ("--frames 10,000", "--frames: expected an integer, such as 64, 200k or 6M, got '10,000'"),
        ("--learner.learning-rate=-1", "--learner.learning-rate: expected a positive number, got -1"),
        ("--resume RUN/checkpoints/5 --local", "--from-run RUN/checkpoints/5"),
        ("--resume MISSING", "MISSING is not a run"),
        ("--from-run MISSING", "MISSING is not a run"),
        (
            "--from-run file:///store/checkpoints/000000000064-ab --local",
            "expected the folder of a run, whose checkpoints may be at a URL, got file:",
        ),
        ("--run NEW --actors.resources fast=1", "actors.resources: expected none without --ray-address, since"),
        ("--run NEW --actors.labels room=1", "actors.labels: expected none without --ray-address, since a cluster"),
        (
            "--env diagnostic:recall,delay=4,diagnostic:recall,delay=5,diagnostic:recall,delay=6 --actors.max-actors 2",
            "max_actors: expected at least num_actors = 3, got 2",
        ),
        ("--from-run RUN --local --core=lstm", "core: expected compressive as in RUN, got lstm"),
        ("--from-run RUN --local --agent.torso-size=32", "agent.torso_size: expected 16 as in "),
        ("--stages 'diagnostic:recall,delay=2'", "stages: expected 'ENV until CONDITION'"),
        ("--stages 'diagnostic:recal until frames 9'", "no diagnostic task 'recal'"),
        ("--resume BARE --local", "BARE has no checkpoints"),
        ("--resume RUN --local --agent.core.num-layers 3", "agent.core.num_layers: expected 2 as in RUN, got "),
        ("--resume RUN --local --core lstm", "core: expected compressive as in RUN, got "),
        ("--resume RUN --local --env rooms:full", "env: expected rooms:small as in RUN, got "),
        ("--resume RUN --local --learner.optimizer rmsprop", "learner.optimizer: expected adam as in RUN, got "),
        ("--resume TEXT", "TEXT is a run of `compressive text train`, expected one of `compressive launch`; use "),
    ],
    "status": [
        ("EMPTY", "is not a run"),
        ("x" * 256, "File name too long"),
        ("''", "DIR: expected a folder or a name, got an empty text"),
    ],
    "runs": [
        ("MISSING", "compressive: MISSING: No such file or directory"),
        ("FULL/thesis.txt", "compressive: FULL/thesis.txt: Not a directory"),
    ],
    "compare": [
        ("--seeds first", "--seeds: expected other values, got 'first'"),
        ("--from", "from: expected folders of runs, got none"),
        ("--from ''", "--from: expected the folder of"),
        ("--cores lstm gru --remote-actors --actors 4..16 --folder NEW", "actors: expected one number in a sweep"),
    ],
    "export": [("RUN RUN/inside", "output: expected a place outside the run, got RUN/inside, which is in RUN")],
    "visualize": [
        ("", "DIR"),
        ("BARE", "no checkpoint"),
        ("SPEECH", "expected one of `compressive launch`; use compressive speech evaluate, sample or train --resume"),
        ("RUN --episodes 0", "episodes"),
        ("RUN --episodes 1 --output FULL/thesis.txt", "FULL/thesis.txt"),
    ],
    "report": [("EMPTY", "is not a run"), ("BARE --output EMPTY", "a regular file")],
    "evaluate": [
        ("RUN BARE", "BARE has no checkpoints"),
        ("RUN --env rooms:full", "[72, 96, 3]"),
        ("RUN --episodes 1 --video FULL/thesis.txt/a.mp4", "FULL/thesis.txt"),
        ("RUN RUN --video a.mp4", "one run to film, got 2"),
        ("RUN --policy random", "got --env None and 1 runs"),
        ("--policy random --env rooms:small --greedy", "--greedy: has no effect with --policy random"),
        ("RUN --csv EMPTY", "csv: EMPTY: expected a regular file, got a folder"),
        ("--policy oracle --env gym:CartPole-v1", "has an oracle"),
    ],
    "text": [
        ("train --learners 3", "learner.batch_size: expected a multiple of 3 (learners x microbatches), got 16"),
        ("train --run NEW --resume TEXT", "give only one of them"),
        ("evaluate EMPTY", "EMPTY is not a run"),
        ("evaluate RUN", "expected one of `compressive text train`"),
    ],
}
"""By command: options and a part of the line that they must end with. Limits of numbers: tests/agent/test_fields.py."""
CASES = [(f"{command} {words}".strip(), fragment) for command, table in TYPED.items() for words, fragment in table]


@pytest.mark.parametrize(("typed", "fragment"), CASES, ids=[words[:60].replace("\0", "") for words, _ in CASES])
def test_bad_input_is_one_line(
    typed: str, fragment: str, finished: Any, tmp_path: Path, monkeypatch: Any, cli: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    for name in ("EMPTY", "FULL", "BARE", "TEXT", "SPEECH"):
        (tmp_path / name).mkdir()
    (tmp_path / "FULL" / "thesis.txt").write_text("all of it")
    (tmp_path / "BARE" / "config.json").write_bytes((finished[0] / "config.json").read_bytes())
    for kind in ("text", "speech"):
        (tmp_path / kind.upper() / "config.json").write_text(json.dumps({"kind": kind}))
    (tmp_path / "RUN").symlink_to(finished[0])

    def content() -> dict[Path, bytes | None]:
        """What is in the folder, by path; None for a folder in it."""
        found: dict[Path, bytes | None] = {}
        for path in tmp_path.rglob("*"):
            if path.name != ".lock":
                found[path] = path.read_bytes() if path.is_file() else None
        return found

    before = content()
    cli.refuse(*shlex.split(typed), words=fragment)
    assert content() == before


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_messages_in_any_encoding(encoding: str) -> None:
    expected = "--frames: expected an integer, such as 64, 200k or 6M, got 'x' (see compressive launch --help)"
    ended = run("launch", "--frames", "x", PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"compressive: {expected}\n")


def test_errors_of_the_program_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def status(options: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("commands.status.status", status)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["status", str(tmp_path)])


# Runs of other versions, edited by hand or damaged.

GONE = object()
"""For `edit`: the value is removed."""
DEEP = json.loads("[" * 400 + "]" * 400)


def edit(tree: Any, path: str, value: Any) -> None:
    """Replaces a value by its path, such as "agent core name"; removes it if the value is `GONE`."""
    *parents, last = path.split()
    for name in parents:
        tree = tree[int(name) if isinstance(tree, list) else name]
    key = int(last) if isinstance(tree, list) else last
    if value is GONE:
        del tree[key]
    else:
        tree[key] = value


CONFIGS: list[tuple[str, Any, str]] = [
    ("agent core memory_sise", 1, "config.agent.core.memory_sise: unknown field; perhaps memory_size; written by"),
    ("agent torso", "zz", "config.agent.torso: expected one of deep, shallow, small, auto, got 'zz'"),
    ("eval_env", "zzz", "config.eval_env: environment 'zzz': expected 'kind:name'"),
    ("agent core name", ["lstm"], "core: expected a core out of compressive"),
    ("agent core", "lstm", "core: expected an object, got 'lstm'"),
    ("agent core new_field", 1, "config.agent.core.new_field: unknown field; written by another version?"),
    ("learner", DEEP, "config.learner: expected an object"),
    ("learner entropy_cost", float("inf"), "learner.entropy_cost: expected a finite number"),
    ("env", 7, "config.env: expected text, got 7"),
    ("frames", True, "config.frames: expected an integer, got True"),
    ("checkpoint_url", ["s3://user:secret@bucket"], "s3://***@bucket"),
]


def test_a_configuration_that_is_damaged_or_of_another_version(copied: Copied, cli: Commands) -> None:
    folder = copied()
    config = folder / "config.json"
    before = config.read_text()

    # JSON with a value that does not fit.
    for path, value, words in CONFIGS:
        plain = json.loads(before)
        edit(plain, path, value)
        config.write_text(json.dumps(plain))
        for command in (RESUME, ["evaluate"], ["status"]):
            cli.refuse(*command, folder, words=[str(config), words])

    # Other text.
    for text, words in {
        "\0\xff": "expected JSON",
        "[]": "expected an object, got []",
        '{"agent": ' + "[" * 100_000 + "]" * 100_000 + "}": "expected JSON",
        before.replace('"rooms:small"', '"rooms:small,gravity=1"'): "'gravity'",
        before.replace('"num_layers": 2', '"num_layers": 3'): f"{folder / 'checkpoints'}",
    }.items():
        config.write_text(text, encoding="latin-1")
        for command in (RESUME, ["evaluate"]):
            cli.refuse(*command, folder, words=words)


STATES: list[tuple[str, Any, str]] = [
    ("generation", GONE, "generation in it"),
    ("episodes", True, "episodes: expected a whole number"),
    ("recent", [{"score": 1.0}], "recent: 0: expected steps, environment"),
    ("recent 0 task", "rooms:full", "recent: expected episodes of rooms:small"),
    ("learner version", 1 << 70, "learner: version: expected a whole number"),
    ("learner optimizer", {"dict": DEEP}, "expected tensors"),
    ("learner optimizer", {"dict": [["state", {"dict": []}]]}, "expected the state of Adam"),
    ("learner optimizer dict 0 1 dict 0 1 dict 1 1 tensor", "none", "expected tensors"),
    ("learner optimizer dict 0 1 dict 0 1 dict 1 1", 3.5, "exp_avg: expected a tensor"),
    ("config actors", GONE, "config: expected actors in it"),
    ("config resident", GONE, "config: expected resident in it"),
    ("config resident", "no", "config: resident: expected true or false, got 'no'"),
    ("config from_run", GONE, "config: expected from_run in it"),
    ("config from_run", 5, "from_run: expected"),
]


def test_a_checkpoint_of_another_version(copied: Copied, cli: Commands) -> None:
    folder = copied()
    last = folder / "checkpoints" / f"{saved_steps(folder)[-1]:012d}"
    state = (last / "state.json").read_text()
    for path, value, words in STATES:
        (last / "state.json").write_text(state)
        forge(last, lambda content, path=path, value=value: edit(content["state"], path, value))  # type: ignore[misc]
        cli.refuse(*RESUME, folder, words=[f"{last} does not fit {folder / 'config.json'}: ", words])


def test_actors_of_another_version(copied: Copied, cli: Commands) -> None:
    """Their tensors are compared with those of today's actors."""
    folder = copied()
    tensors = checkpoints.load_latest(folder).parts["actors"]
    last = folder / "checkpoints" / f"{saved_steps(folder)[-1]:012d}"
    name = next(name for name in tensors if name.startswith("0/") and name.endswith("/reward"))
    tensors[name] = tensors[name].double()
    save_file(tensors, last / "actors.safetensors")

    # The checkpoint itself is not damaged: it has the digest of the new file.
    data = (last / "actors.safetensors").read_bytes()
    digest = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(last, lambda content: content["files"].update({"actors.safetensors": digest}))

    expected = f"{last} does not fit: actors: {name}: expected torch.float32 [2], got torch.float64 [2]"
    cli.refuse(*RESUME, folder, "--frames=1000000", words=expected)


def test_no_cluster_at_the_address(tmp_path: Path, cli: Commands) -> None:
    words = "ray-address: expected a Ray cluster, got 127.0.0.1:1"
    cli.refuse("launch", "--run", tmp_path / "run", *TINY, "--ray-address", "127.0.0.1:1", words=words)
    assert list(tmp_path.iterdir()) == []
