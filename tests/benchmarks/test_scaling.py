"""The model of benchmarks/scaling.py: its numbers solve its own equations, and it has the expected limits."""

import dataclasses
import math
from typing import Any

import pytest

from benchmarks.scaling import Loop, Options, main, measure_networks
from commands.parsing import parse_train

SIZES = {"unroll_steps": 500, "unroll_bytes": 10_000_000, "batch_unrolls": 8, "weight_bytes": 30_000_000}
COSTS = {
    "request_seconds": 4e-4,
    "wait_seconds": 4e-7,
    "receive_seconds": 5e-3,
    "call_seconds": 3e-4,
    "weights_seconds": 0.02,
}
LOOP = Loop(**SIZES, actor_steps_per_second=200.0, learning_seconds=0.3, network=10e9, **COSTS)


@pytest.mark.parametrize("gpus", [1, 8, 64, 1000])
def test_the_loop_takes_the_longest_of_the_times_side_by_side(gpus: int) -> None:
    seconds = LOOP.seconds(gpus)
    rate = LOOP.steps_per_second(gpus)
    assert rate * max(seconds.values()) == pytest.approx(gpus * 8 * 500)
    assert LOOP.gpu_busy(gpus) == pytest.approx(0.3 / max(seconds.values()))
    actors = gpus * 8 * 500 / seconds["driver"] / 200  # as many as the driver could serve
    assert seconds["driver"] == pytest.approx(LOOP.driver_seconds(gpus, actors))


def test_only_one_learner_receives_unrolls_in_the_driver() -> None:
    assert LOOP.driver_seconds(1, 0) == pytest.approx(8 * (4e-4 + 5e-3) + 0.02)
    assert LOOP.driver_seconds(2, 0) == pytest.approx(16 * 4e-4 + 4 * 3e-4 + 0.02)
    assert LOOP.seconds(1)["update"] == pytest.approx(0.3)
    assert LOOP.seconds(2)["update"] == pytest.approx(0.3 + 0.02 + 2 * 3e-4)
    assert LOOP.seconds(8)["network"] == LOOP.seconds(64)["network"] == pytest.approx(8 * 8 * 0.01 / 10)


def test_the_driver_and_the_network_bound_the_rate() -> None:
    # Without costs the rate grows with the GPUs.
    free = dataclasses.replace(LOOP, **dict.fromkeys(COSTS, 0.0), network=math.inf)
    assert free.steps_per_second(64) == pytest.approx(64 * free.steps_per_second(1))
    assert free.gpus_at_half() is None

    # With them the driver limits it.
    rates = [LOOP.steps_per_second(gpus) for gpus in (1, 2, 8, 64, 10_000)]
    assert rates == sorted(rates)
    assert rates[-1] < LOOP.unroll_steps / LOOP.request_seconds
    gpus = LOOP.gpus_at_half()
    assert gpus is not None
    assert LOOP.gpu_busy(gpus) <= 0.5 < LOOP.gpu_busy(gpus - 1)

    # In a slow network, which is then in use all of the time.
    slow = dataclasses.replace(LOOP, network=1e8)
    assert slow.row(8, Options())["longest"] == "network"
    assert slow.row(8, Options())["network_in"] == pytest.approx(1)


def test_rows_count_actors_and_bytes() -> None:
    options = Options(node_cores=10)

    # One GPU.
    one = LOOP.row(1, options)
    assert one["actors"] == math.ceil(LOOP.steps_per_second(1) / 200)
    assert one["actor_nodes"] == math.ceil(one["actors"] / 10)
    unrolls = LOOP.steps_per_second(1) / 500 * 0.01  # GB/s
    assert one["unrolls_gb_per_second"] == pytest.approx(unrolls, abs=1e-3)
    assert one["network_in"] == pytest.approx(unrolls / 10, abs=1e-3)
    weights = LOOP.steps_per_second(1) / 4000 * 0.03 * one["actor_nodes"]
    assert one["network_out"] == pytest.approx(weights / 10, abs=1e-3)

    # 64 GPUs: a node has eight of them.
    many = LOOP.row(64, options)
    unrolls = LOOP.steps_per_second(64) / 500 * 0.01 / 8
    gradients = 2 * 0.03 * LOOP.steps_per_second(64) / 256_000
    assert many["network_in"] == pytest.approx((unrolls + gradients) / 10, abs=1e-3)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_step_with_several_columns_of_actions_is_one_step() -> None:
    words = ["--env", "gym:tests.envs.odd:Many", "--actors.envs-per-actor", "2", "--actors.unroll-length", "16"]
    config = parse_train("launch", words).config
    unroll, measured = measure_networks(config, seconds=0.01)
    assert unroll.action.shape[2] > 1
    assert measured["unroll_steps"] == 2 * 16


@pytest.mark.parametrize(("options", "words"), [({"gpus": (8, 0)}, "gpus"), ({"node_gpus": 0}, "node-gpus")])
def test_no_gpus_are_refused_before_the_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^--{words}: expected at least 1, got 0$"):
        main(Options(**options))
