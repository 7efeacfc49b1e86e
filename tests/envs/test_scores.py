"""Reference scores by spec, and normalized scores."""

import re

import pytest

import envs
from envs.dmlab30 import LEVELS
from envs.rooms import VARIANTS
from envs.scores import MEASURED

UNKNOWN = dict.fromkeys(("human", "random", "oracle", "memoryless"))


@pytest.mark.parametrize(
    "spec",
    ["rooms:full", "rooms:full-half", "rooms:full,actions=fifteen", "dmlab:rooms_select_nonmatching_object"],
)
def test_the_level_itself(spec: str) -> None:
    human = 65.9
    random = 0.312
    oracle = 77.0
    assert envs.reference_scores(spec) == UNKNOWN | {"human": human, "random": random, "oracle": oracle}
    assert envs.mean_normalized({spec: human})["human_normalized"] == pytest.approx(100.0)
    assert envs.mean_normalized({spec: random})["human_normalized"] == pytest.approx(0.0)
    assert envs.mean_normalized({spec: oracle})["oracle_normalized"] == pytest.approx(100.0)


def test_variants_of_the_level() -> None:
    for variant in VARIANTS:
        has_human_score = envs.reference_scores(f"rooms:{variant}")["human"] is not None
        assert has_human_score == (variant in ("full", "full-half"))
        assert MEASURED[variant]["oracle"] > MEASURED[variant]["random"] >= 0
    for spec in ("rooms:small,object_scale=2.0", "dmlab:lt_chasm", "dmlab:elsewhere/rooms_watermaze"):
        assert envs.reference_scores(spec) == UNKNOWN
    assert envs.reference_scores("diagnostic:recall,delay=3").keys() == UNKNOWN.keys()
    with pytest.raises(ValueError, match="full, full-half, transfer"):
        envs.reference_scores("rooms:large")


def test_several_tasks_have_the_mean_where_all_have_one() -> None:
    two = "diagnostic:recall,delay=3,diagnostic:recall,symbols=2"
    expected = {"oracle": 1.0, "memoryless": (0.25 + 0.5) / 2, "random": (0.25 + 0.5) / 2}
    assert envs.reference_scores(two) == UNKNOWN | expected
    other = "diagnostic:recall,gym:CartPole-v1"
    assert envs.reference_scores(other) == UNKNOWN


@pytest.mark.parametrize(
    "fields",
    [
        "endless-tmaze,corridors=0",
        "recall,symbols=0",
        "recall,symbols=[1]",
        "association,keys=0",
        "color-cubes,area=6",
        "visual-match,apple=-1",
    ],
)
def test_tasks_that_cannot_be_have_no_scores(fields: str) -> None:
    name = re.search(r",(\w+)=", fields)[1]  # type: ignore[index]
    spec = re.escape(repr(f"diagnostic:{fields}"))
    with pytest.raises(ValueError, match=f"environment {spec}: {name}: expected "):
        envs.reference_scores(f"diagnostic:{fields}")


def test_scores_of_tasks_of_any_length_are_known_at_once() -> None:
    assert envs.reference_scores("diagnostic:endless-tmaze,corridors=1000000000")["random"] == pytest.approx(1e-9)
    long = envs.reference_scores("diagnostic:association,keys=8,values=4,steps=1000000000")
    assert long["oracle"] == pytest.approx(0.5)
    assert envs.reference_scores("diagnostic:passive-tmaze,length=1000000000")["random"] == pytest.approx(-1.0)


def test_people_score_100_on_dmlab30_and_random_actions_0() -> None:
    for level in LEVELS:
        for spec in (level.train, level.test, f"contributed/dmlab30/{level.test},test=True,actions=fifteen"):
            scores = envs.reference_scores(f"dmlab:{spec}")
            assert (scores["human"], scores["random"]) == (level.human, level.random)
    tested = envs.tasks(envs.held_out("dmlab:dmlab30"))
    for score, wanted in (("human", 100.0), ("random", 0.0)):
        means = envs.mean_normalized({task: envs.reference_scores(task)[score] for task in tested})
        assert means["human_normalized"] == pytest.approx(wanted, abs=1e-9)
        assert means["human_normalized_capped"] == pytest.approx(wanted, abs=1e-9)


def test_means_over_tasks() -> None:
    assert envs.mean_normalized({}) == {}
    assert envs.mean_normalized({"rooms:small,hud=False": 3.0}) == {}
    assert envs.mean_normalized({"rooms:small": 242.0}) == {"oracle_normalized": pytest.approx(100.0)}

    # 200 % of the human score, 0 % of it, and a task without reference scores, which is left out.
    twice_human = 2 * 54 - 4.065
    scores = {"dmlab:rooms_watermaze": twice_human, "dmlab:lasertag_one_opponent_small": -0.224, "dmlab:x": 9.0}
    expected = {"human_normalized": pytest.approx(100.0), "human_normalized_capped": pytest.approx(50.0)}
    assert envs.mean_normalized(scores) == expected


def test_a_task_in_which_nothing_is_to_be_gained_is_left_out_of_the_means() -> None:
    nothing = "diagnostic:recall,reward=0"
    assert envs.mean_normalized({nothing: 0.0}) == {}
    assert envs.mean_normalized({nothing: 0.0, "rooms:small": 242.0}) == {"oracle_normalized": pytest.approx(100.0)}
