"""The model of benchmarks/scaling.py: its numbers solve its own equation, and it has the expected limits."""

import dataclasses
import math

import pytest

from benchmarks.scaling import Loop, Options

SIZES = {"unroll_steps": 500, "unroll_bytes": 10_000_000, "batch_unrolls": 8, "weight_bytes": 30_000_000}
COSTS = ("request_seconds", "wait_seconds", "receive_seconds", "scatter_seconds", "publish_seconds")
LOOP = Loop(
    **SIZES, actor_steps_per_second=200.0, update_seconds=0.3, **dict(zip(COSTS, (4e-4, 4e-7, 5e-3, 3e-3, 0.02)))
)
BY_REFERENCE = dataclasses.replace(LOOP, by_reference=True)


@pytest.mark.parametrize(("gpus", "by_reference"), [(1, False), (8, True), (64, False), (64, True)])
def test_time_of_the_loop_is_the_sum_of_its_parts(gpus, by_reference):
    loop = dataclasses.replace(LOOP, by_reference=by_reference)
    rate = loop.steps_per_second(gpus)
    seconds = loop.update_seconds + loop.driver_seconds(gpus, rate / loop.actor_steps_per_second)
    assert rate * seconds == pytest.approx(gpus * loop.batch_unrolls * loop.unroll_steps)
    assert loop.gpu_busy(gpus) == pytest.approx(loop.update_seconds / seconds)


def test_the_driver_bounds_the_rate():
    free = dataclasses.replace(LOOP, **dict.fromkeys(COSTS, 0.0))
    assert free.steps_per_second(64) == pytest.approx(64 * free.steps_per_second(1))
    rates = [LOOP.steps_per_second(gpus) for gpus in (1, 2, 8, 64, 10_000)]
    assert rates == sorted(rates)
    assert rates[-1] < LOOP.unroll_steps / (LOOP.receive_seconds + LOOP.scatter_seconds)
    assert BY_REFERENCE.steps_per_second(64) > 2 * LOOP.steps_per_second(64)
    gpus = LOOP.gpus_at_half()
    assert LOOP.gpu_busy(gpus) <= 0.5 < LOOP.gpu_busy(gpus - 1)


def test_rows_count_actors_and_bytes():
    options = Options(network_gbit=80, node_cores=10, node_gpus=8)  # 10 GB/s
    one, many = LOOP.row(1, options), LOOP.row(64, options)
    assert one["actors"] == math.ceil(LOOP.steps_per_second(1) / 200)
    assert one["actor_nodes"] == math.ceil(one["actors"] / 10)
    unrolls = LOOP.steps_per_second(1) / 500 * 0.01  # GB/s
    assert one["unrolls_gb_per_second"] == pytest.approx(unrolls, abs=1e-3)
    assert one["network_in"] == pytest.approx(unrolls / 10, abs=1e-3)
    weights = LOOP.steps_per_second(1) / 4000 * 0.03 * one["actor_nodes"]
    assert one["network_out"] == pytest.approx(weights / 10, abs=1e-3)
    assert many["network_in"] > many["unrolls_gb_per_second"] / 10, "gradients go over the network, too"
    assert BY_REFERENCE.row(64, options)["network_in"] < many["network_in"]
