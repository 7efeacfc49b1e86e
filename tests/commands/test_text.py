"""`compressive text`: a run from its first line to samples, interruptions, and bad input."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import types
from pathlib import Path
from typing import Any

import pytest
import tyro

from benchmarks.text import Options
from commands import main
from learner.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, PATIENCE, refusal, saved_steps, start, wait_until
from tests.commands.test_errors import GONE, edit
from tests.learner.runs import forge
from text.modality import Text

TINY = [
    "--corpus=folder",
    "--model.core.model-size=16",
    "--model.core.num-layers=1",
    "--model.core.mlp-size=16",
    "--model.core.segment-size=8",
    "--model.core.memory-size=8",
    "--learner.batch-size=4",
    "--learner.sequence-length=16",
    "--learner.late-start=20",
    "--learner.late-accumulation-steps=2",
    "--evaluate-every=16",
    "--log-every=1",
]
COMPRESSIVE = [*TINY, "--model.core.compressed-size=8", "--model.core.dropout=0.1"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the token files of all tests in one place, outside the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    for index in range(30):
        (root / f"{index}.txt").write_text(f"def function_{index}(x):\n    return x + {index}\n" * 20)
    return root


def options(corpus: Path, run: Path, steps: int, *others: str) -> list[str]:
    return ["text", "train", *COMPRESSIVE, f"--path={corpus}", f"--run={run}", f"--learner.steps={steps}", *others]


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        run = tmp_path_factory.mktemp("runs") / "trained"
        main(options(corpus, run, 40, "--checkpoint-seconds=0"))
    return run


def files(run: Path, step: int = 40) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"{step:012d}"
    return {name: (folder / f"{name}.safetensors").read_bytes() for name in ("weights", "optimizer", "memory")}


def test_a_run_is_a_folder(trained: Path) -> None:
    rows = read_metrics(trained)
    assert rows[-1]["step"] == 40
    assert rows[-1]["valid/bits_per_byte"] < rows[0]["loss/nll"] / 0.693
    assert [row["step"] for row in rows if "valid/nll" in row] == [16, 32, 40]
    assert json.loads((trained / "config.json").read_text())["model"]["core"]["name"] == "compressive"
    found = json.loads((trained / "evaluation.json").read_text())
    assert found["bits_per_byte"] == pytest.approx(found["nll"] / 0.6931471805599453 / found["bytes"])
    assert (found["step"], found["rows"], found["precision"]) == (40, 16, "float32")
    assert list(trained.glob("events*"))


@pytest.mark.ray
@pytest.mark.slow
def test_two_learners_on_ray_equal_one_and_stop_with_a_checkpoint(corpus: Path, tmp_path: Path) -> None:
    """With relative paths; Ray's processes have another working directory."""
    pytest.importorskip("ray.train")
    words = ["text", "train", *TINY, "--core=transformer-xl", "--learner.device=cpu"]
    main([*words, f"--path={corpus}", f"--run={tmp_path / 'one'}", "--learner.steps=4"])
    paths = [f"--path={os.path.relpath(corpus, tmp_path)}", "--run=two"]
    two = tmp_path / "two"
    with (tmp_path / "screen").open("w+") as screen:
        process = start(*words, *paths, "--learners=2", "--learner.steps=1000000", output=screen, cwd=tmp_path)
        wait_until(lambda: last_metrics(two).get("step", 0) >= 4, process)
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE)
        screen.seek(0)
        said = screen.read()
    assert status == 128 + signal.SIGINT, said
    assert "pid=" not in said, "nothing of Ray's"
    assert "/1M steps" in said
    rows = read_metrics(two)
    assert saved_steps(two)[-1] == rows[-1]["step"], "nothing is lost"
    assert f"stopped at step {rows[-1]['step']}; resume with: compressive text train --resume two" in said
    for name in ("step", "loss/nll", "gradient/norm"):
        expected = [row[name] for row in read_metrics(tmp_path / "one")]
        assert [row[name] for row in rows[:4]] == pytest.approx(expected, rel=1e-5), name


def test_kill_9_then_the_end_is_the_same_bit_for_bit(corpus: Path, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    process = start(*options(corpus, run, 40, "--checkpoint-seconds=0"), env=ENVIRONMENT)
    wait_until(lambda: saved_steps(run) and saved_steps(run)[-1] > 3, process)
    process.kill()
    process.wait()
    assert saved_steps(run)[-1] < 40, "killed too late to show anything"
    main(["text", "train", "--resume", str(run)])
    assert files(run) == files(trained)
    assert [row["step"] for row in read_metrics(run)] == [row["step"] for row in read_metrics(trained)]
    measured = [json.loads((folder / "evaluation.json").read_text()) for folder in (run, trained)]
    for each in measured:
        del each["tokens_per_second"]
    assert measured[0] == measured[1]


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_resume(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    with (tmp_path / "said").open("w") as said:
        process = start(*options(corpus, run, 10**6), output=said)
    wait_until(lambda: last_metrics(run), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 128 + signal.SIGINT
    assert f"resume with: compressive text train --resume {run}" in (tmp_path / "said").read_text()
    assert saved_steps(run)[-1] > 0


def test_evaluate_measures_all_that_is_asked_for(trained: Path, capfd: Any) -> None:
    flags = ["--sizes", "8:16", ":4", "--frequency", "--position", "--attention", "--compression", "--dynamic=0.001"]
    main(["text", "evaluate", str(trained), "--rows=8", *flags])
    said = capfd.readouterr().out
    for words in ("bits a byte", "times in training text", "tokens of context", "standard error", "compression loss"):
        assert words in said
    assert re.search(r"> 10000 *│ - *│ 0 ", said), "no token is so frequent"
    assert re.search(r"100.0 %.*tokens  left 0:00", said), "progress with the time left"
    found = json.loads((trained / "evaluation-test.json").read_text())
    assert found["frequency"]["> 10000"] == {"nats": None, "count": 0}
    assert [(each["memory_size"], each["compressed_size"]) for each in found["sizes"]] == [(8, 16), (None, 4)]
    assert found["dynamic"]["bits_per_byte"] != found["bits_per_byte"]
    assert (found["step"], found["rows"], found["dynamic"]["learning_rate"]) == (40, 8, 0.001)


def test_prescribed_words_are_named(trained: Path) -> None:
    found = json.loads((trained / "evaluation.json").read_text())
    data = Text.__new__(Text)
    assert "prescribes" not in str(list(data.tables(found)))
    said = str(list(data.tables(found | {"words": 6_966_499, "words_prescribed": True})))
    assert ", over the 6,966,499 words that PG-19 prescribes" in said


def test_checkpoints_that_are_skipped_are_named(trained: Path, tmp_path: Path, capfd: Any) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "checkpoints" / f"{40:012d}" / "weights.safetensors").write_bytes(b"")
    said = f"skipped checkpoint {40:012d}: weights.safetensors has 0 bytes"
    main(["text", "sample", str(run), "--length=1"])
    assert said in capfd.readouterr().err, "not within the text"
    main(["text", "evaluate", str(run)])
    assert said in capfd.readouterr().out
    assert json.loads((run / "evaluation-test.json").read_text())["step"] == 38
    main(["text", "train", f"--resume={run}"])
    assert said in capfd.readouterr().out


def test_a_run_works_from_any_folder_and_its_text_may_move(corpus: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    """The printed commands can be typed, for any name of the run."""
    shutil.copytree(corpus, tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    main(["text", "train", *COMPRESSIVE, "--path=text", "--run=my [old] run", "--learner.steps=2"])
    said = capfd.readouterr().out
    for command in ("text train --resume", "text evaluate", "text sample"):
        assert f"compressive {command} {shlex.quote('my [old] run')}" in said
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "my [old] run"
    main(["text", "evaluate", str(run)])
    (tmp_path / "text").rename(tmp_path / "moved")
    main(["text", "train", f"--resume={run}", "--path=../moved", "--learner.steps=4"])
    assert json.loads((run / "config.json").read_text())["path"] == str(tmp_path / "moved")
    assert saved_steps(run)[-1] == 4
    main(["text", "train", f"--resume={run}", "--learner.steps=3"])
    assert json.loads((run / "evaluation.json").read_text())["step"] == 4, "the step that was measured"


def test_sample_continues_a_prompt(trained: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["text", "sample", str(trained), "--prompt=def ", "--length=20", "--seed=3"])
    first = capfd.readouterr().out
    assert first.startswith("def ")
    assert len(first) > 15
    main(["text", "sample", str(trained), "--prompt=def ", "--length=20", "--seed=3"])
    assert capfd.readouterr().out == first
    long = types.SimpleNamespace(buffer=io.BytesIO(b"def function" * 500))
    monkeypatch.setattr("sys.stdin", long)
    main(["text", "sample", str(trained), "--prompt=-", "--length=5", "--temperature=0"])
    assert len(capfd.readouterr().out.strip("\n")) <= 6


@pytest.mark.parametrize("core", ["local", "lstm"])
def test_baselines_by_one_flag(core: str, corpus: Path, tmp_path: Path) -> None:
    sizes = [word for word in TINY if not word.startswith("--model.core") or (core == "local" and "memory" not in word)]
    run = tmp_path / "run"
    main(["text", "train", *sizes, f"--core={core}", "--model.core.model-size=16", f"--path={corpus}", f"--run={run}",
          "--learner.steps=4", "--reset-documents"])  # fmt: skip
    assert saved_steps(run)[-1] == 4
    assert json.loads((run / "config.json").read_text())["reset_at_starts"], "the option's name in version 0.1"


def test_words_with_an_adaptive_softmax(corpus: Path, tmp_path: Path, capfd) -> None:
    """There are no bits a byte: unknown words and lost spaces cannot be decoded."""
    run = tmp_path / "run"
    words = ["--tokens=words", "--model.cutoffs", "10", "30", "--model.tied", "--evaluate-tokens=2"]
    main(options(corpus, run, 4, *words))
    main(["text", "sample", str(run), "--prompt=def function_1(x):", "--length=3"])
    main(["text", "evaluate", str(run), "--sizes", ":4"])
    assert "│ bits a byte" not in capfd.readouterr().out
    for file in ("evaluation.json", "evaluation-test.json"):
        assert "bits_per_byte" not in (run / file).read_text()
    assert not any("valid/bits_per_byte" in row for row in read_metrics(run))
    found = json.loads((run / "evaluation.json").read_text())
    assert found["word_perplexity"] == pytest.approx(2.718281828459045 ** found["nats_per_token"])
    with pytest.raises(SystemExit):
        tyro.cli(Options, args=["--tokens=words"])


def test_text_without_spaces(tmp_path: Path) -> None:
    """The evaluated part has no whole word."""
    (tmp_path / "text").mkdir()
    for index, split in enumerate(("train", "valid", "test")):
        text = "".join(chr(19968 + (index + number) % 500) for number in range(1000))
        (tmp_path / "text" / f"{split}.txt").write_text(text)
    main(options(tmp_path / "text", tmp_path / "run", 2, "--evaluate-tokens=20"))
    assert saved_steps(tmp_path / "run")[-1] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--path=/nowhere"], "/nowhere: expected folder, found nothing there"),
        (["--learner.batch-size=4096"], "folder, split train: tokens: expected more than the 4096 x 16 of one batch"),
        (["--corpus=latin"], "corpus: expected one of python, enwik8, wikitext103, pg19, folder, got 'latin'"),
        (["--preset=large"], "preset: expected one of cpu, enwik8, wikitext103, pg19, got 'large'"),
        (["--core=abacus"], "core: expected one of compressive, transformer-xl, "),
        (["--model.core.compression-rate=3"], "compression_rate: expected a divisor of segment_size = 8, got 3"),
        (["--tokens=words", "--model.cutoffs", "5000"], "cutoffs: expected ascending numbers between 0 and "),
        (["--learner.sequence-length=12"], "sequence_length: expected a multiple of the core's segment_size = 8"),
        (["--checkpoint-seconds=inf"], "checkpoint_seconds: expected a finite number, 0 or more, got inf"),
        (["--path=~no-such-user/text"], "path: expected a file or a folder, got '~no-such-user/text': Could not"),
        (["--path=/dev/null"], "/dev/null: expected a folder of text, found none"),
        (["--learner.device=cuda:9"], "device: expected auto, cpu or a GPU that torch finds"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(changes, message, corpus, tmp_path: Path, capfd) -> None:
    run = tmp_path / "run"
    assert message in refusal(options(corpus, run, 4, *changes), capfd)
    assert not run.exists()


def test_links_in_a_circle_are_refused(trained: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for command in (["train", *COMPRESSIVE, f"--run={tmp_path / 'run'}"], ["evaluate", str(trained)]):
        said = refusal(["text", *command, f"--path={tmp_path / 'circle'}"], capfd)
        assert f"path: expected a file or a folder, got '{tmp_path / 'circle'}'" in said


def test_impossible_uses_of_a_run_are_refused(trained: Path, tmp_path: Path, capfd) -> None:
    assert "is not a run: expected a folder with config.json" in refusal(["text", "sample", str(tmp_path)], capfd)
    (tmp_path / "config.json").write_text("{}")
    assert "expected one of `compressive text train`" in refusal(["text", "evaluate", str(tmp_path)], capfd)
    assert "already exists and is not empty" in refusal(["text", "train", f"--run={trained}"], capfd)
    assert "sizes: expected MEMORY:COMPRESSED" in refusal(["text", "evaluate", str(trained), "--sizes", "x"], capfd)
    for change, said in {
        "--seed=1": "seed: expected 0",
        "--core=lstm": "core: expected compressive",
    }.items():
        assert f"{said} as in {trained}" in refusal(["text", "train", f"--resume={trained}", change], capfd)
    assert "expected a number in (0, 1], got nan" in refusal(["text", "sample", str(trained), "--top-p=nan"], capfd)
    assert "dynamic: expected" in refusal(["text", "evaluate", str(trained), "--dynamic=nan"], capfd)
    assert "expected train, evaluate or sample, got 'learn'" in refusal(["text", "learn"], capfd)


def test_other_text_than_a_run_was_trained_on_is_refused(trained: Path, corpus: Path, tmp_path: Path, capfd) -> None:
    for index in range(30):
        (tmp_path / f"{index}.txt").write_text(f"other {index}\n" * 40)
    for command in (["evaluate", str(trained)], ["train", f"--resume={trained}"]):
        said = refusal(["text", *command, f"--path={tmp_path}"], capfd)
        assert f"corpus: expected the data that {trained} was trained on" in said


def test_a_run_that_lost_its_tokenizer(trained: Path, tmp_path: Path, capfd) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    commands = (["evaluate", str(run)], ["sample", str(run)], ["train", f"--resume={run}"])
    (run / "tokenizer.json").write_text("{")
    for command in commands:
        assert f"{run / 'tokenizer.json'}: expected JSON" in refusal(["text", *command], capfd)
    (run / "tokenizer.json").unlink()
    for command in commands:
        assert str(run / "tokenizer.json") in refusal(["text", *command], capfd)


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("state.json", "learner", GONE, ["learner in it"]),
        ("state.json", "learner step", "40", ["learner: step: expected a whole number", "'40'"]),
        ("state.json", "learner memory", {"list": 3}, ["does not fit", "expected tensors"]),
        ("state.json", "learner source", {}, ["tokens: expected None as before"]),
        ("state.json", "learner optimizer", {"tensor": []}, ["does not fit", "expected tensors"]),
        ("state.json", "rng", {}, ["rng: expected python, numpy, torch, cuda in it"]),
        ("state.json", "rng torch", "", ["this version of torch"]),
        ("config.json", "model core name", {}, ["core: expected a core out of", "{}"]),
        ("config.json", "learner new_field", 1, ["unknown fields", "new_field"]),
        ("config.json", "model", [], ["config.model: expected an object"]),
        ("tokenizer.json", "digest", GONE, ["tokenizer.json", "digest in it"]),
        ("tokenizer.json", "digest", 3, ["tokenizer.json", "digest: expected a text", "3"]),
    ],
)
def test_a_run_of_another_version(
    file: str, path: str, value: Any, words: list[str], trained: Path, tmp_path: Path, capfd: Any
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    if file == "state.json":
        forge(run / "checkpoints" / f"{40:012d}", lambda content: edit(content["state"], path, value))
    else:
        plain = json.loads((run / file).read_text())
        edit(plain, path, value)
        (run / file).write_text(json.dumps(plain))
    error = refusal(["text", "train", f"--resume={run}"], capfd)
    assert all(word in error for word in words), error


@pytest.mark.parametrize("plain", [[], {"kind": "words"}, {"kind": "words", "words": [1]}, {"kind": ["words"]}])
def test_a_tokenizer_of_another_version(plain: Any, trained: Path, tmp_path: Path, capfd: Any) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "tokenizer.json").write_text(json.dumps(plain))
    assert "tokenizer: " in refusal(["text", "sample", str(run)], capfd)
