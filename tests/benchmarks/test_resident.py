"""benchmarks/resident.py: its options, and what its comparison with the CPU finds."""

import math

import pytest
import torch

from benchmarks.resident import Options, check, faults_of, make_base

SMALL = {"preset": "cpu", "env": "diagnostic:recall", "device": "cpu"}


def test_environments_are_divided_into_whole_actors() -> None:
    """Else fewer would be played than the rates count."""
    assert make_base(Options(**SMALL, envs=(32, 64))).resident
    with pytest.raises(SystemExit, match=r"^--envs: expected multiples of 32, the preset's envs_per_actor, got 100$"):
        make_base(Options(**SMALL, envs=(64, 100)))


def test_the_comparison_with_the_cpu_finds_what_differs() -> None:
    """Equal levels have no fault; the least error above each bound, no steps and NaN have one."""
    equal = {"steps": 192, "integers_that_differ": 0, "greatest_error": 0.0, "pixels_that_differ": 0.0}
    assert faults_of(equal) == []
    assert faults_of(equal | {"greatest_error": 1.0, "pixels_that_differ": 0.00009}) == []
    assert faults_of(equal | {"integers_that_differ": 1}) == ["check: integers_that_differ: expected at most 0, got 1"]
    assert faults_of(equal | {"greatest_error": 1.5}) == ["check: greatest_error: expected at most 1, got 1.5"]
    assert faults_of(equal | {"greatest_error": math.nan}) == ["check: greatest_error: expected at most 1, got nan"]
    assert len(faults_of(equal | {"pixels_that_differ": 0.002})) == 1
    assert faults_of(equal | {"steps": 0}) == ["check: no steps were compared"]


@pytest.mark.parametrize("env", ["diagnostic:recall", "rooms:small", "rooms:small,looks=train,own_view=True"])
def test_every_environment_of_a_device_is_compared(env: str) -> None:
    equal = {"steps": 384, "integers_that_differ": 0, "greatest_error": 0.0, "pixels_that_differ": 0.0}
    assert check(env, torch.device("cpu"), 6) == equal
