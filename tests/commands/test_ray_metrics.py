"""Rows of metrics as gauges of Ray; what a cluster then serves is in test_jobs.py."""

import math
from typing import Any

import pytest
from ray.util.metrics import Gauge
from training.ray_metrics import RayGauges, gauge_name

from learner.metrics import MetricsWriter
from training.impala import make_mirror


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What gauges were set to, by name, with the run that they are tagged with."""
    rows: dict[str, list[Any]] = {}

    def record(gauge: Gauge, value: float, tags: dict[str, str] | None = None) -> None:
        assert not gauge._discard_metric, "Ray takes the name"
        rows.setdefault(gauge.info["name"], []).append((gauge._get_final_tags(tags)["run"], value))

    monkeypatch.setattr(Gauge, "_record", record)
    return rows


def test_every_row_goes_to_the_files_and_to_the_gauges(tmp_path, recorded):
    with MetricsWriter(tmp_path / "a", mirror=make_mirror(tmp_path / "a", local=False)) as writer:
        writer.write(1, {"episode/return": 1.5, "loss/compression/layer_0": 2})
        writer.write(2, {"episode/return": -0.5})
    assert recorded == {
        "compressive_episode_return": [("a", 1.5), ("a", -0.5)],
        "compressive_loss_compression_layer_0": [("a", 2.0)],
    }


def test_what_is_not_finite_is_left_out(recorded):
    gauges = RayGauges("b")
    gauges.set({"loss/total": math.nan, "gradient/norm": math.inf})
    gauges.set({"loss/total": 1.0})
    assert recorded == {"compressive_loss_total": [("b", 1.0)]}


def test_without_ray_there_is_no_mirror(tmp_path):
    assert make_mirror(tmp_path, local=True) is None


def test_names_are_made_of_what_ray_allows():
    assert gauge_name("a.b-c/d:e f") == "compressive_a_b_c_d_e_f"
