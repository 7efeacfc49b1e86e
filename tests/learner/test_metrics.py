"""Rows of metrics: written at once, readable meanwhile, and cut back to the checkpoint from which a run goes on."""

import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.metrics import MetricsWriter, last_metrics, read_metrics


def write(run, steps, resumed_step=None, value=0.0):
    with MetricsWriter(run, resumed_step) as writer:
        for step in steps:
            writer.write(step, {"episode/return": value + step, "loss/policy": -0.5})


def events(run):
    accumulator = EventAccumulator(str(run))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("episode/return")]


def test_rows_and_events(tmp_path):
    run = tmp_path / "new" / "run"
    write(run, [10, 20])
    rows = read_metrics(run)
    assert [row.pop("time") > 1e9 for row in rows] == [True, True]
    assert rows == [
        {"step": 10, "episode/return": 10.0, "loss/policy": -0.5},
        {"step": 20, "episode/return": 20.0, "loss/policy": -0.5},
    ]
    assert events(run) == [(10, 10.0), (20, 20.0)]


def test_rows_can_be_read_while_they_are_written(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a/b": 2.0})
        assert [row["a/b"] for row in read_metrics(tmp_path)] == [2.0]
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "time": 0, "a/')
        assert [row["step"] for row in read_metrics(tmp_path)] == [1]


def test_the_last_row_is_the_last_whole_one(tmp_path):
    assert last_metrics(tmp_path) == {}
    write(tmp_path, range(2_000))
    assert (tmp_path / "metrics.jsonl").stat().st_size > 64 << 10
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "time": 0, "a/')
    assert last_metrics(tmp_path) == read_metrics(tmp_path)[-1]


def test_resuming_removes_later_rows(tmp_path):
    write(tmp_path, [10, 20, 30, 40])
    write(tmp_path, [30, 50], resumed_step=20, value=0.25)
    assert [(row["step"], row["episode/return"]) for row in read_metrics(tmp_path)] == [
        (10, 10.0),
        (20, 20.0),
        (30, 30.25),
        (50, 50.25),
    ]
    assert events(tmp_path) == [(10, 10.0), (20, 20.0), (30, 30.25), (50, 50.25)]


def test_beginning_anew_removes_all_rows(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [5], resumed_step=0)
    assert [row["step"] for row in read_metrics(tmp_path)] == [5]


@pytest.mark.parametrize("torn", ['{"step": 30, "ti', '{"step": 30}', "\0\0\0\n", "7\n"])
@pytest.mark.parametrize("resumed_step", [None, 20, 100])
def test_a_torn_last_line_is_removed(tmp_path, torn, resumed_step):
    write(tmp_path, [10, 20])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    write(tmp_path, [40], resumed_step)
    assert [row["step"] for row in read_metrics(tmp_path)] == [10, 20, 40]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_what_is_not_finite_is_null_in_the_file(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a/nan": math.nan, "a/inf": -math.inf, "a/one": 1})

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (row["a/nan"], row["a/inf"], row["a/one"]) == (None, None, 1.0)
    assert math.isnan(read_metrics(tmp_path)[0]["a/nan"])


def test_the_block_closes_and_errors_pass(tmp_path):
    writer = MetricsWriter(tmp_path)
    with pytest.raises(ZeroDivisionError), writer:
        writer.write(1, {"a/b": 1 / 0})
    writer = MetricsWriter(tmp_path)
    with writer:
        writer.write(1, {"a/b": 1.0})
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(2, {"a/b": 1.0})
    assert len(read_metrics(tmp_path)) == 1


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics.jsonl: there is no such file"):
        read_metrics(tmp_path)
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"learning_rate": 1.0})
        for name in ("", "step", "time"):
            with pytest.raises(ValueError, match=f"expected names other than '', 'step' and 'time', got '{name}'"):
                writer.write(1, {name: 1.0})
    assert len(read_metrics(tmp_path)) == 1
