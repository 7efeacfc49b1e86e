"""Rows of metrics: readable while they are written, and cut back to the checkpoint from which a run is resumed."""

import math
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from storage import metrics
from storage.metrics import MetricsWriter, last_metrics, read_metrics, read_on, sample_metrics
from storage.run import Run


@pytest.fixture(autouse=True)
def _files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files of one second by name, and .100 comes before .98: each test counts its files from 0."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def write(run: Run, steps: Any, resumed_step: int = 0, value: float = 0.0) -> None:
    """Rows with these steps, whose return is the step, plus `value`."""
    with MetricsWriter(run, resumed_step) as writer:
        for step in steps:
            writer.write(step, {"episode/return": value + step, "loss/policy": -0.5})


def append(run: Run, text: str) -> None:
    """Text at the end of the file of rows."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text)


def events(run: Run) -> list[tuple[int, float]]:
    """Steps and returns as TensorBoard reads them."""
    accumulator = EventAccumulator(str(run))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("episode/return")]


def steps_in(run: Run) -> list[int]:
    return [row["step"] for row in read_metrics(run)]


def lines_in(run: Run) -> int:
    return len((run / "metrics.jsonl").read_bytes().splitlines())


def test_rows_and_events_and_resumption(tmp_path: Path) -> None:
    """Resuming removes the rows and events after the step of the checkpoint."""
    run = tmp_path / "new" / "run"
    write(run, [10, 20])
    rows = read_metrics(run)
    assert len(rows) == 2
    for row, step in zip(rows, (10, 20)):
        assert row.pop("time") > 1e9, "seconds since 1970"
        assert row == {"step": step, "episode/return": float(step), "loss/policy": -0.5}
    assert events(run) == [(10, 10.0), (20, 20.0)]

    # The run resumes from step 20 twice.
    write(run, [30, 40], resumed_step=20)
    write(run, [30, 50], resumed_step=20, value=0.25)
    returns = [(row["step"], row["episode/return"]) for row in read_metrics(run)]
    assert returns == [(10, 10.0), (20, 20.0), (30, 30.25), (50, 50.25)]
    assert events(run) == returns

    # It begins anew.
    write(run, [5], resumed_step=0)
    assert steps_in(run) == [5]


def test_rows_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    assert last_metrics(tmp_path) == {}
    with MetricsWriter(tmp_path) as writer:
        for step in range(2_000):
            writer.write(step, {"a/b": 2.0})
        append(tmp_path, '{"step": 2000, "time": 0, "a/')
        rows = read_metrics(tmp_path)
        assert [row["step"] for row in rows] == list(range(2_000))
        assert sample_metrics(tmp_path) == rows, "all rows of a file that is not long"
        assert last_metrics(tmp_path) == rows[-1]


def test_rows_are_read_on_from_where_the_last_reader_was(tmp_path: Path) -> None:
    write(tmp_path, [10, 20])
    rows, position = read_on(tmp_path)
    assert [row["step"] for row in rows] == [10, 20]
    append(tmp_path, '{"step": 30, ')
    assert read_on(tmp_path, position) == ([], position)
    append(tmp_path, '"loss": 1.0}\n')
    rows, end = read_on(tmp_path, position)
    assert rows == [{"step": 30, "loss": 1.0}]
    assert read_on(tmp_path, end) == ([], end)

    write(tmp_path, [], resumed_step=10)
    rows, _ = read_on(tmp_path, end)
    assert [row["step"] for row in rows] == [10], "a run that was resumed is read anew"


def long_run(run: Path, rows: int = 20_000) -> None:
    """10 MB of rows; every thousandth from the five hundredth on has another metric as well."""
    numbers = ", ".join(f'"group/name_{index}": 0.12345' for index in range(17))
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, rows + 1):
            valid = f', "valid/nll": {step}.5' if step % 1000 == 500 else ""
            file.write(f'{{"step": {step}, {numbers}{valid}}}\n')


def test_a_sample_of_a_long_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows at equal distances, the last one, and all that have the metric that is asked for."""
    long_run(tmp_path)
    monkeypatch.setattr(metrics, "SAMPLE", 100)
    sampled = {*range(1, 20_000, 200), 20_000}
    with_metric = set(range(500, 20_000, 1000))
    assert [row["step"] for row in sample_metrics(tmp_path)] == sorted(sampled)
    assert [row["step"] for row in sample_metrics(tmp_path, "valid/nll")] == sorted(sampled | with_metric)


def test_the_last_rows_of_a_long_file(tmp_path: Path) -> None:
    long_run(tmp_path)
    assert last_metrics(tmp_path)["step"] == 20_000
    row = last_metrics(tmp_path, "valid/nll")
    assert row["step"] == 19_500
    assert row["valid/nll"] == 19_500.5
    assert last_metrics(tmp_path, "valid/other") == {}
    assert [row["step"] for row in read_metrics(tmp_path) if "valid/nll" in row] == list(range(500, 20_000, 1000))

    for resumed_step in (19_990, 10_000, 0):
        write(tmp_path, [], resumed_step)
        assert last_metrics(tmp_path).get("step", 0) == resumed_step == len(read_metrics(tmp_path))


DAMAGED = [
    "[" * 100_000 + "]" * 100_000,
    '{"step": ' * 100_000,
    '{"step": "12", "a/b": 1}',
    '{"step": NaN}',
    '{"step": true}',
    f'{{"step": 1{"0" * 400}}}',
    "\0" * 1_000_000,
    '"step"',
    "\n\n\r\n",
]
TORN = ['{"step": 30, "ti', '{"step": 30}', "\0\0\0"]


def short(text: str) -> str:
    """An id of a test for a text that may be very long."""
    return f"{text[:20]} {len(text)}"


@pytest.mark.parametrize("line", DAMAGED, ids=short)
def test_damaged_rows_are_left_out(line: str, tmp_path: Path) -> None:
    write(tmp_path, [10, 20])
    append(tmp_path, f"{line}\n")
    assert last_metrics(tmp_path)["step"] == 20
    assert steps_in(tmp_path) == [10, 20]
    assert [row["step"] for row in sample_metrics(tmp_path)] == [10, 20]

    write(tmp_path, [40], resumed_step=25)
    assert steps_in(tmp_path) == [10, 20, 40]
    assert lines_in(tmp_path) == 3


@pytest.mark.parametrize("resumed_step", [20, 100])
@pytest.mark.parametrize("line", TORN, ids=short)
def test_a_torn_row_is_removed_when_the_run_resumes(line: str, resumed_step: int, tmp_path: Path) -> None:
    write(tmp_path, [10, 20])
    append(tmp_path, line)
    write(tmp_path, [40], resumed_step)
    assert steps_in(tmp_path) == [10, 20, 40]
    assert lines_in(tmp_path) == 3


def test_values_that_are_not_numbers_are_nan(tmp_path: Path) -> None:
    values = ["NaN", "Infinity", "-1e999", "null", '"x"', "[1]", "{}", "true", "1" + 400 * "0"]
    row = ", ".join(f'"a/{index}": {value}' for index, value in enumerate(values))
    append(tmp_path, f'{{"step": 1, {row}, "b": 2.5}}\n')
    for read in (last_metrics(tmp_path), read_metrics(tmp_path)[0], sample_metrics(tmp_path)[0]):
        assert read.pop("step") == 1
        assert read.pop("b") == 2.5
        assert all(math.isnan(value) for value in read.values())
        assert len(read) == len(values)


def test_whole_numbers_may_be_as_long_as_a_float(tmp_path: Path) -> None:
    """As whole numbers their products would fit into no float."""
    append(tmp_path, f'{{"step": 1, "a/huge": 1{"0" * 308}}}\n')
    huge = last_metrics(tmp_path)["a/huge"]
    assert huge == 1e308
    assert f"{huge * 100:.1f}" == "inf"


def test_values_that_are_not_finite_are_null_in_the_file(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a/nan": math.nan, "a/inf": -math.inf, "a/one": 1})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert all(word in text for word in ('"a/nan": null', '"a/inf": null', '"a/one": 1.0'))


@pytest.mark.parametrize("kind", ["folder", "loop", "device", "pipe", "nowhere"])
def test_only_files_are_read_and_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "metrics.jsonl"
    links = {"loop": path, "device": Path("/dev/null"), "nowhere": tmp_path / "nowhere"}
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(links[kind])
    for use in (read_metrics, sample_metrics, last_metrics, MetricsWriter):
        with pytest.raises(OSError, match=r"expected a regular file, got a .*metrics.jsonl"):
            use(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """One that takes no room on the disk, say."""
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 100 << 30)
    for use, words in (
        (read_metrics, "expected at most 536870912 bytes"),
        (sample_metrics, "expected at most 536870912 bytes"),
        (last_metrics, "expected such a row in its last 536870912 bytes"),
        (MetricsWriter, "expected such a row in its last 536870912 bytes"),
    ):
        with pytest.raises(OSError, match=f"{words}, got {100 << 30}.*metrics.jsonl"):
            use(tmp_path)


def test_a_long_run_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last rows are found without reading all of its metrics."""
    write(tmp_path, range(100))
    monkeypatch.setattr(metrics, "MOST_BYTES", 1000)
    monkeypatch.setattr(metrics, "_END", 100)
    monkeypatch.setattr(metrics, "_BLOCK", 100)
    assert (tmp_path / "metrics.jsonl").stat().st_size > 2000
    assert last_metrics(tmp_path)["step"] == 99
    write(tmp_path, [98, 99, 100], 97)
    assert last_metrics(tmp_path)["step"] == 100
    with pytest.raises(OSError, match="expected such a row in its last 1000 bytes"):
        write(tmp_path, [4], 3)
    assert last_metrics(tmp_path)["step"] == 100, "nothing is lost"
    with pytest.raises(OSError, match="expected at most 1000 bytes"):
        sample_metrics(tmp_path)


@pytest.mark.parametrize("block", [128, 1_000, 10_000])
def test_rows_are_read_block_by_block(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than a block and a line at once, and no line that is longer than a block."""
    monkeypatch.setattr(metrics, "_BLOCK", block)
    monkeypatch.setattr(metrics, "_END", block // 2)
    write(tmp_path, range(0, 600, 2))
    append(tmp_path, "x" * 25_000 + "\n")
    expected = steps_in(tmp_path)
    assert expected == list(range(0, 600, 2))
    assert [row["step"] for row in sample_metrics(tmp_path, "step")] == expected
    assert last_metrics(tmp_path)["step"] == 598
    _, position = read_on(tmp_path)
    assert position == (tmp_path / "metrics.jsonl").stat().st_size

    for resumed_step in (301, 0):
        write(tmp_path, [], resumed_step)
        assert steps_in(tmp_path) == [step for step in expected if step <= resumed_step]


def test_a_long_line_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(tmp_path, [10])
    os.truncate(path, 32 << 20)
    tracemalloc.start()
    for read in (read_metrics, sample_metrics):
        assert [row["step"] for row in read(tmp_path)] == [10]
    assert last_metrics(tmp_path)["step"] == 10
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_the_block_closes_and_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics.jsonl"):
        read_metrics(tmp_path)
    with pytest.raises(ZeroDivisionError), MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a/b": 1 / 0})
    assert read_metrics(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        writer.write(2, {"a/b": 1.0})
