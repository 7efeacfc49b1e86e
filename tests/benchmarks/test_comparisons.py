"""Comparisons do equal work: language models and compressors on the same bytes, other systems and this one."""

import bz2
import functools
from pathlib import Path

import numpy as np
import pytest

from agent.core import LSTMConfig
from benchmarks import cubes, digests, exported, peers
from benchmarks.common import marked
from benchmarks.text import TABLE_5, Options, compressors, variants
from sequences.text.corpora import load
from tests.waiting import wait_until

HALF = """#!/bin/sh
trap '' TERM
sleep 100 &
for steps in 100 300 500; do echo "{\\"steps\\": $steps}"; done
wait
"""
"""Replaces another system: it and its child ignore the request to end."""


def test_variants_are_the_rows_of_the_table_and_see_the_same_tokens() -> None:
    assert list(variants(Options())) == ["compressive", "transformer-xl"]
    found = variants(Options(compare="compressions", steps=40))
    assert list(found) == [*(", ".join(row) for row in TABLE_5), "transformer-xl"]
    for name, config in found.items():
        learner = config.learner
        assert learner.batch_size * learner.sequence_length == 16 * 64, name
        assert learner.steps == 40
        assert learner.learning_rate_at(40) == learner.least_learning_rate < learner.learning_rate_at(39)


def test_compressors_count_the_bits_of_the_held_out_text(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"line {index}\n" for index in range(3000)))
    held = b"".join(document.read() for document in load("folder", corpus)["test"])
    bits = compressors(load("folder", corpus))
    assert bits["bz2 -9, alone"] == 8 * len(bz2.compress(held, 9)) / len(held)
    assert bits["xz -9e, after the training text"] < bits["xz -9e, alone"]


def test_our_batches_have_as_many_steps_as_those_of_others() -> None:
    options = peers.Options()
    for envs in (4, 8, 16):
        config = peers.our_config(options, envs)
        assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
        assert (config.agent.core, config.actors.num_actors) == (LSTMConfig(256), 2)
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        peers.our_config(options, 3)


def test_systems_without_an_interpreter_are_left_out(tmp_path: Path) -> None:
    assert {name for name, start in peers.find_systems(peers.Options()).items() if start} == {"ours"}
    python = tmp_path / "python"
    with pytest.raises(SystemExit, match=rf"^--sample-factory: expected a file \(see --help\), got {python}$"):
        peers.find_systems(peers.Options(sample_factory=python))
    python.touch()
    with pytest.raises(SystemExit, match=r"^--ppo-trxl and --ppo-trxl-python: expected both or neither"):
        peers.find_systems(peers.Options(ppo_trxl=python))
    found = peers.find_systems(peers.Options(rllib=python, ppo_trxl=python, ppo_trxl_python=python))
    assert [name for name, start in found.items() if not start] == ["sample_factory"]


def test_others_are_measured_and_ended_with_all_that_they_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(tmp_path)
    monkeypatch.setenv("MARK", mark)
    monkeypatch.setattr(peers, "end", functools.partial(peers.end, seconds=0.5))
    python, options = tmp_path / "python", peers.Options(seconds=0, warm_up=0)
    python.write_text(HALF)
    python.chmod(0o755)
    progress = peers.peer("rllib", python, options, 2)
    assert next(progress) == 100
    wait_until(lambda: len(marked(mark)) == 2)  # its child is between fork and exec at first
    steps, cpu = peers.measure(progress, options)
    assert steps > 0 <= cpu
    assert not marked(mark)
    with pytest.raises(SystemExit, match=r"^rllib: expected updates until it is measured, but it ended"):
        peers.measure(peers.peer("rllib", Path("/bin/true"), options, 2), options)


def test_every_other_system_has_a_half() -> None:
    halves = {path.stem for path in (Path(peers.__file__).parent / "foreign").glob("*.py")}
    assert halves == {"level", "rllib", "sample_factory", "ppo_trxl"}


def test_exported_agents_step_in_both_orders_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a made-up clock the steps that warm up take a minute each."""
    now = 0.0
    order: list[str] = []

    def call(name: str, seconds: float) -> str:
        nonlocal now
        now += 60.0 if order.count(name) < exported.WARM_UP else seconds
        order.append(name)
        return f"result of {name}"

    monkeypatch.setattr(exported.time, "process_time", lambda: now)
    calls = {
        "torch": functools.partial(call, "torch", 0.003),
        "onnxruntime": functools.partial(call, "onnxruntime", 0.001),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for step in range(exported.WARM_UP + 3):
        found = exported.timed(calls, step, seconds)
        assert found == {name: f"result of {name}" for name in calls}
    assert order[:4] == ["torch", "onnxruntime", "onnxruntime", "torch"]
    assert {name: exported.milliseconds(of_name) for name, of_name in seconds.items()} == {
        "torch": 3.0,
        "onnxruntime": 1.0,
    }


def test_too_few_steps_of_exported_agents_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--steps: expected at least 11, got 0$"):
        exported.measure(exported.Options(steps=0))
    with pytest.raises(ValueError, match=r"^--rows: expected one value or more, got none$"):
        exported.measure(exported.Options(rows=()))


def test_digests_of_no_run_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--only: expected a part of one of agent compressive; .*, got 'nope'$"):
        digests.measure(digests.Options(only="nope"))
    with pytest.raises(ValueError, match=r"^--only: "):  # there without Ray
        digests.measure(digests.Options(only="2 learners", ray=False))


def test_targets_of_whole_episodes_are_counted_by_cell() -> None:
    """The oracle takes all five targets of an episode of each of 64 environments."""
    found = cubes.measure(cubes.Options(targets=1))["oracle"]
    assert (found["targets"], found["episodes"], found["share"]) == (5 * 64, 64, 1.0)
    assert np.array(found["targets by cell"]).sum() == 5 * 64
    assert set(np.ravel(found["by cell"])) == {1.0}


def test_a_cell_without_a_target_has_no_share() -> None:
    assert cubes.shares(np.array([[4, 0], [3, 1]]), np.array([[3, 0], [1, 0]])) == [[0.75, None], [0.33, 0.0]]
    with pytest.raises(ValueError, match=r"^--targets: expected at least 1, got 0$"):
        cubes.measure(cubes.Options(targets=0))
