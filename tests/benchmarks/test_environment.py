"""benchmarks/environment.py: what is counted as a step, which episodes are played, and names that do not exist."""

import pytest

from benchmarks import environment
from benchmarks.environment import ROWS, Options, step
from envs import make_vector
from envs.rooms import RoomsConfig


def test_all_rows_of_a_batch_are_counted_whatever_their_actions_are() -> None:
    envs = make_vector("gym:tests.envs.odd:Many", ROWS)
    work = step(envs)
    assert work() == ROWS
    envs.close()


def test_environments_that_do_not_exist_fail_and_others_are_measured() -> None:
    specs = ("gym:Nope-v0", "gym:nope:Nope", "diagnostic:recall")
    found = environment.main(Options(specs=specs, levels=(), seconds=0.01))
    assert "Nope" in found["speed"]["gym:Nope-v0"]
    assert found["speed"]["diagnostic:recall"]["steps_per_second"] > 0
    assert found["failed"] == ["gym:Nope-v0"]
    with pytest.raises(ValueError, match=r"^--levels: expected one of full, .*, got 'nope'$"):
        environment.main(Options(specs=(), levels=("nope",)))


def test_the_oracle_and_random_actions_play_as_many_episodes_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def score(config: RoomsConfig, episodes: int, oracle: bool) -> dict[str, float]:
        played.append((oracle, episodes))
        return {}

    monkeypatch.setattr(environment, "score", score)
    environment.main(Options(specs=(), levels=("small",), episodes=5, oracle_episodes=3))
    assert played == [(True, 3), (False, 5)]
