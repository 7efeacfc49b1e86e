"""`compressive text`: a run from its first line to samples, and bad input. Interruptions: test_resume.py."""

import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tyro
from rich.console import Console

from benchmarks.text import Options
from commands import main, sequence
from sequences.text.config import TextConfig
from storage.metrics import last_metrics, read_metrics
from tests.commands.cli import (
    COMPRESSIVE_TEXT,
    ENVIRONMENT,
    TINY_TEXT,
    Commands,
    marked,
    saved_steps,
    start,
    write_corpus,
)
from tests.commands.test_errors import GONE, edit
from tests.learner.runs import forge
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus("text", tmp_path_factory.mktemp("corpora") / "text")


def options(corpus: Path, run: Path, steps: int, *others: str) -> list[str]:
    """The command that trains a tiny compressive model on a corpus."""
    words = ["text", "train", *COMPRESSIVE_TEXT, f"--path={corpus}", f"--run={run}", f"--learner.steps={steps}"]
    return [*words, *others]


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 40 steps, with a checkpoint after each."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    main(options(corpus, run, 40, "--checkpoint-seconds=0"))
    return run


def measured(run: Path, split: str = "") -> dict[str, Any]:
    """The evaluation at the end of training, or by a later command, such as "-test"."""
    return json.loads((run / f"evaluation{split}.json").read_text())


def test_training_says_what_it_is_and_what_to_type_next(corpus: Path, tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    said = cli.run(*options(corpus, run, 2))
    assert re.search(r"^model +compressive core, [\d.]+k parameters, learning on cpu$", said, re.MULTILINE), said
    for part in ("evaluate", "sample"):
        assert re.search(rf"^{part} +compressive text {part} {run}$", said, re.MULTILINE), said


def test_a_run_is_a_folder(trained: Path) -> None:
    rows = read_metrics(trained)
    first, *_, last = rows
    assert last["step"] == 40
    assert last["valid/bits_per_byte"] < first["loss/nll"] / math.log(2), "it learned"
    assert [row["step"] for row in rows if "valid/nll" in row] == [16, 32, 40]
    assert json.loads((trained / "config.json").read_text())["model"]["core"]["name"] == "compressive"
    found = measured(trained)
    assert found["bits_per_byte"] == pytest.approx(found["nll"] / math.log(2) / found["bytes"])
    assert (found["step"], found["rows"], found["precision"]) == (40, 16, "float32")
    assert list(trained.glob("events*"))


@pytest.mark.ray
@pytest.mark.slow
def test_two_learners_on_ray_equal_one_though_one_is_killed(corpus: Path, tmp_path: Path) -> None:
    """With relative paths; Ray's processes have another working directory. Then Ctrl-C stops them with a checkpoint."""
    words = ["text", "train", *TINY_TEXT, "--core=transformer-xl", "--learner.device=cpu"]
    one = tmp_path / "one"
    main([*words, f"--path={corpus}", f"--run={one}", "--learner.steps=8"])

    # Two learners, one of which is killed after four steps.
    two = tmp_path / "two"
    paths = [f"--path={os.path.relpath(corpus, tmp_path)}", "--run=two"]
    with (tmp_path / "screen").open("w+") as screen:
        words += [*paths, "--learners=2", "--learner.steps=1000000"]
        process = start(*words, output=screen, cwd=tmp_path, env={**ENVIRONMENT, "MARK": str(tmp_path)})
        wait_until(lambda: last_metrics(two).get("step", 0) >= 4, process)
        learners = marked(str(tmp_path), "ray::RemoteLearner")
        assert len(learners) == 2
        os.kill(next(iter(learners)), signal.SIGKILL)
        step = last_metrics(two)["step"]
        wait_until(lambda: last_metrics(two)["step"] >= max(8, step + 2), process)
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE)
        screen.seek(0)
        said = screen.read()

    # What is printed, and the last checkpoint.
    assert status == 128 + signal.SIGINT, said
    assert "pid=" not in said, "nothing of Ray's"
    assert "/1M steps" in said
    rows = read_metrics(two)
    assert saved_steps(two)[-1] == rows[-1]["step"], "nothing is lost"
    assert f"stopped at step {rows[-1]['step']}; resume with: compressive text train --resume two" in said

    # The numbers of the first eight steps.
    for name in ("step", "loss/nll", "gradient/norm"):
        expected = [row[name] for row in read_metrics(one)]
        assert [row[name] for row in rows[:8]] == pytest.approx(expected, rel=1e-5), name


def test_evaluate_measures_all_that_is_asked_for(trained: Path, cli: Commands) -> None:
    flags = ["--sizes", "8:16", ":4", "--frequency", "--position", "--attention", "--compression", "--dynamic=0.001"]
    said = cli.run("text", "evaluate", trained, "--rows=8", *flags)
    for words in ("bits_per_byte", "sizes: memory size", "position: from", "attention: kinds", "compression/layer_0"):
        assert words in said
    assert re.search(r"> 10000 +- +- +0 ", said), "no token is so frequent"
    assert re.search(r"100.0 %  \S+ tokens", said), "a line of progress"
    found = measured(trained, "-test")
    assert found["frequency"]["> 10000"] == {"nats": None, "perplexity": None, "count": 0}
    assert [(each["memory_size"], each["compressed_size"]) for each in found["sizes"]] == [(8, 16), (None, 4)]
    assert found["dynamic"]["bits_per_byte"] != found["bits_per_byte"]
    assert (found["step"], found["rows"], found["dynamic"]["learning_rate"]) == (40, 8, 0.001)

    # What is refused changes nothing; what is measured alike, but less of it, keeps the rest.
    cli.refuse("text", "evaluate", trained, "--rows=8", "--sizes", "8:16", "64:0", words="compressed_size: expected")
    assert measured(trained, "-test") == found
    cli.run("text", "evaluate", trained, "--rows=8", "--sizes", "8:8")
    again = measured(trained, "-test")
    assert [each["compressed_size"] for each in again.pop("sizes")] == [8]
    assert {name: again[name] for name in again if name != "tokens_per_second"} == {
        name: found[name] for name in found if name not in ("sizes", "tokens_per_second")
    }
    cli.run("text", "evaluate", trained, "--rows=4")
    assert not {"sizes", "frequency", "dynamic"} & measured(trained, "-test").keys(), "read in other rows"


def test_checkpoints_that_are_skipped_are_named(fresh: Callable[[], Path], cli: Commands) -> None:
    run = fresh()
    (run / "checkpoints" / f"{40:012d}" / "weights.safetensors").write_bytes(b"")
    said = f"skipped checkpoint {40:012d}: weights.safetensors has 0 bytes"
    main(["text", "sample", str(run), "--length=1"])
    assert said in cli.capfd.readouterr().err, "not within the text"
    assert said in cli.run("text", "evaluate", run)
    assert measured(run, "-test")["step"] == 38


def test_a_run_works_from_any_folder_and_its_text_may_move(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands
) -> None:
    """The printed commands can be typed, for any name of the run."""
    shutil.copytree(corpus, tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    said = cli.run("text", "train", *COMPRESSIVE_TEXT, "--path=text", "--run=my [old] run", "--learner.steps=2")
    for command in ("text train --resume", "text evaluate", "text sample"):
        assert f"compressive {command} {shlex.quote('my [old] run')}" in said

    # From another folder.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "my [old] run"
    main(["text", "evaluate", str(run)])

    # With a text that has moved.
    (tmp_path / "text").rename(tmp_path / "moved")
    main(["text", "train", f"--resume={run}", "--path=../moved", "--learner.steps=4"])
    assert json.loads((run / "config.json").read_text())["path"] == str(tmp_path / "moved")

    # For fewer steps than it has.
    main(["text", "train", f"--resume={run}", "--learner.steps=3"])
    assert (saved_steps(run)[-1], measured(run)["step"]) == (4, 4), "the step that was measured"


def test_sample_continues_a_prompt(trained: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["text", "sample", trained, "--prompt=def ", "--length=20", "--seed=3"]
    first = cli.run(*words)
    assert first.startswith("def ")
    assert len(first) > 15
    assert cli.run(*words) == first

    # A long prompt from the standard input is not repeated in the output.
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b"def function" * 500)))
    said = cli.run("text", "sample", trained, "--prompt=-", "--length=5", "--temperature=0")
    assert len(said.strip("\n")) <= 6


@pytest.mark.parametrize(
    ("option", "tokens", "resets"),
    [("--reset-at-starts", "bytes", 0), ("--threads=1", "bytes", None), ("--reset-at-starts", "words", None)],
)
def test_sampling_resets_memory_as_training_did(
    option: str, tokens: str, resets: int | None, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a document begins; with words, the end of a line is mostly none."""
    run = tmp_path / "run"
    main(options(corpus, run, 2, f"--tokens={tokens}", option))
    asked = []
    monkeypatch.setattr(sequence, "sample", lambda *_, document: asked.append(document) or [])
    main(["text", "sample", str(run)])
    assert asked == [resets]


def test_files_that_are_left_out_are_named_whatever_warnings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with PYTHONWARNINGS=ignore."""
    monkeypatch.setattr(sequence, "open_data", lambda *_: warnings.warn("left out a.txt", stacklevel=1))
    console = Console(file=io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sequence._open_data(TextConfig(), None, console)
    assert "left out a.txt" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["--resume", "--like"])
def test_an_empty_folder_is_refused(
    option: str, cli: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    for command in (["text", "train"], ["launch", "--local", "--frames", "100"]):
        cli.refuse(*command, option, "", words=f"{option}: expected the folder of a run, got an empty text")
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_no_text_is_refused_in_one_line(tmp_path: Path, cli: Commands) -> None:
    """Behind a link, for example."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    cli.refuse("text", "train", "--corpus=folder", "--path", tmp_path / "link", words="path: expected text in UTF-8")


def test_samples_are_drawn_as_asked(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sequence, "sample", lambda *words, document: asked.append(words[2:]) or [])
    main(["text", "sample", str(trained), "--length=7", "--temperature=0.5", "--top-p=0.9", "--seed=3"])
    assert asked == [(7, 0.5, 0.9, 3)]


@pytest.mark.parametrize("core", ["local", "lstm"])
def test_baselines_by_one_flag(core: str, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["text", "train", f"--core={core}", f"--path={corpus}", f"--run={run}", "--reset-at-starts"]
    words += [option for option in TINY_TEXT if ".core" not in option]
    words += ["--model.core.model-size=16", "--learner.steps=4"]
    if core == "local":
        # It has the options of a transformer, but no memory.
        words += [option for option in TINY_TEXT if ".core" in option and "memory" not in option]
    main(words)
    assert saved_steps(run)[-1] == 4
    config = json.loads((run / "config.json").read_text())
    assert config["reset_at_starts"]


def test_a_model_like_another(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    main(["text", "train", f"--like={trained}", f"--run={run}", "--learner.steps=2", "--seed=3"])
    config, other = (json.loads((folder / "config.json").read_text()) for folder in (run, trained))
    assert (config.pop("seed"), config["learner"].pop("steps")) == (3, 2)
    assert (other.pop("seed"), other["learner"].pop("steps")) == (0, 40)
    assert config == other


def test_words_with_an_adaptive_softmax(corpus: Path, tmp_path: Path, cli: Commands) -> None:
    """There are no bits a byte: unknown words and lost spaces cannot be decoded."""
    run = tmp_path / "run"
    words = ["--tokens=words", "--model.cutoffs", "10", "30", "--model.tied", "--evaluate-tokens=2"]
    main(options(corpus, run, 4, *words))
    main(["text", "sample", str(run), "--prompt=def function_1(x):", "--length=3"])
    assert "bits_per_byte" not in cli.run("text", "evaluate", run, "--sizes", ":4")
    found = measured(run)
    for each in (found, measured(run, "-test"), *read_metrics(run)):
        assert not {"bits_per_byte", "valid/bits_per_byte"} & each.keys()
    assert found["word_perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))

    # The benchmark of text compares bits a byte.
    with pytest.raises(SystemExit):
        tyro.cli(Options, args=["--tokens=words"])


def test_text_without_spaces(tmp_path: Path) -> None:
    """The evaluated part has no whole word."""
    (tmp_path / "text").mkdir()
    first_ideograph = 0x4E00
    for index, split in enumerate(("train", "valid", "test")):
        text = "".join(chr(first_ideograph + (index + number) % 500) for number in range(1000))
        (tmp_path / "text" / f"{split}.txt").write_text(text)
    main(options(tmp_path / "text", tmp_path / "run", 2, "--evaluate-tokens=20"))
    assert saved_steps(tmp_path / "run")[-1] == 2


def test_bad_input_is_refused_before_writing(corpus: Path, trained: Path, tmp_path: Path, cli: Commands) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for change, words in {
        "--path=/nowhere": "/nowhere: expected folder, found nothing there",
        "--path=~no-such-user/text": "path: expected a file or a folder, got '~no-such-user/text': Could not",
        "--path=/dev/null": "/dev/null: expected a folder of text, found none",
        f"--path={tmp_path / 'circle'}": f"path: expected a file or a folder, got '{tmp_path / 'circle'}'",
        "--corpus=latin": "corpus: expected one of python, enwik8, wikitext103, pg19, folder, got 'latin'",
        "--learner.batch-size=4096": "folder, split train: tokens: expected more than the 4096 x 16 of one batch",
        "--tokens=words --model.cutoffs 5000": "cutoffs: expected ascending numbers between 0 and ",
    }.items():
        cli.refuse(*options(corpus, tmp_path / "run", 4, *change.split()), words=words)
    assert not (tmp_path / "run").exists()

    # Options that do not fit a run, or another text than it was trained on.
    write_corpus("text", tmp_path / "other")
    (tmp_path / "other" / "0.txt").write_text("other\n" * 40)
    other = (f"--path={tmp_path / 'other'}", f"corpus: expected the data that {trained} was trained on")
    for *arguments, words in (
        ["evaluate", trained, "--sizes", "x", "sizes: expected MEMORY:COMPRESSED"],
        ["evaluate", trained, "--dynamic=nan", "dynamic: expected"],
        ["evaluate", trained, *other],
        ["train", f"--resume={trained}", "--core=lstm", f"core: expected compressive as in {trained}"],
        ["train", f"--resume={trained}", *other],
    ):
        cli.refuse("text", *arguments, words=words)


def test_a_run_that_is_damaged_or_of_another_version(fresh: Callable[[], Path], cli: Commands) -> None:
    run = fresh()
    resume = ["train", f"--resume={run}"]

    # Its checkpoint.
    last = run / "checkpoints" / f"{40:012d}"
    state = (last / "state.json").read_text()
    for path, value, words in (
        ("learner", GONE, "learner in it"),
        ("learner step", "40", "learner: step: expected a whole number of 0 or more, got '40'"),
        ("learner memory", {"list": 3}, "expected tensors"),
    ):
        (last / "state.json").write_text(state)
        forge(last, lambda content, path=path, value=value: edit(content["state"], path, value))  # type: ignore[misc]
        cli.refuse("text", *resume, words=words)

    # Its tokenizer.
    file = run / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    file.write_text(json.dumps(tokenizer | {"digest": 3}))
    cli.refuse("text", *resume, words="tokenizer.json: digest: expected a text")
    for text, words in {"{": f"{file}: expected JSON", "[]": "got []", '{"kind": ["words"]}': "tokenizer"}.items():
        file.write_text(text)
        for command in (["evaluate", run], ["sample", run], resume):
            cli.refuse("text", *command, words=words)
    file.unlink()
    for command in (["evaluate", run], ["sample", run], resume):
        cli.refuse("text", *command, words=str(file))
