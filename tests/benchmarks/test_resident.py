"""The options of benchmarks/resident.py."""

import pytest

from benchmarks.resident import Options, make_base

SMALL = {"preset": "cpu", "env": "diagnostic:recall", "device": "cpu"}


def test_environments_are_divided_into_whole_actors() -> None:
    """Else fewer would be played than the rates count."""
    assert make_base(Options(**SMALL, envs=(32, 64))).resident
    with pytest.raises(SystemExit, match=r"^--envs: expected multiples of 32, the preset's envs_per_actor, got 100$"):
        make_base(Options(**SMALL, envs=(64, 100)))
