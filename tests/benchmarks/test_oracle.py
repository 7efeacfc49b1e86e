"""The figures of the oracle, and their picture."""

from pathlib import Path

import pytest

from benchmarks.oracle import Options, main


def test_players_and_their_ways(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "ways.png"
    found = main(Options(episodes=2, picture=picture))
    assert {name: figures["score"] for name, figures in found.items()} == {
        "scripted, nine actions": 67.0,
        "planned, nine actions": 77.0,
        "scripted, fifteen actions": 66.0,
        "planned, fifteen actions": 77.0,
    }
    for figures in found.values():
        assert figures["least"] == figures["most"] == figures["score"]
        assert len(figures["first_trial"]) == figures["reward_steps"][1]
    assert picture.read_bytes()[:4] == b"\x89PNG"
