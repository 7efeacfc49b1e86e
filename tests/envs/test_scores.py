"""Reference scores by spec, and normalised scores."""

import pytest

import envs
from envs.dmlab30 import LEVELS
from envs.rooms import VARIANTS
from envs.scores import MEASURED

UNKNOWN = {"human": None, "random": None, "oracle": None}


def test_the_level_itself():
    for spec, oracle in (("rooms:full", 67.0), ("dmlab:rooms_select_nonmatching_object", 66.0)):
        assert envs.reference_scores(spec) == {"human": 65.9, "random": 0.312, "oracle": oracle}
        for score, scale, percent in ((65.9, "human", 100.0), (0.312, "human", 0.0), (oracle, "oracle", 100.0)):
            assert envs.mean_normalised({spec: score})[f"{scale}_normalised"] == pytest.approx(percent)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_level(variant):
    scores = envs.reference_scores(f"rooms:{variant}")
    assert scores["human"] is None or variant == "full"
    assert MEASURED[variant]["oracle"] > MEASURED[variant]["random"] >= 0
    assert envs.reference_scores(f"rooms:{variant},object_scale=2.0") == UNKNOWN


def test_unknown_variants_are_named():
    with pytest.raises(ValueError, match="full, full-randomised"):
        envs.reference_scores("rooms:large")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.train)
def test_dmlab30(level):
    for name in (level.train, level.test, f"contributed/dmlab30/{level.test}"):
        for fields in ("", ",test=True,actions=fifteen,image_height=36"):
            scores = envs.reference_scores(f"dmlab:{name}{fields}")
            assert (scores["human"], scores["random"]) == (level.human, level.random)


def test_other_levels_of_lab():
    assert envs.reference_scores("dmlab:lt_chasm") == UNKNOWN
    assert envs.reference_scores("dmlab:elsewhere/rooms_watermaze") == UNKNOWN


def test_means_over_tasks():
    assert envs.mean_normalised({}) == {}
    assert envs.mean_normalised({"rooms:small,hud=False": 3.0}) == {}
    assert envs.mean_normalised({"rooms:small": 242.0}) == {"oracle_normalised": pytest.approx(100.0)}
    scores = {"dmlab:rooms_watermaze": 2 * 54 - 4.065, "dmlab:lasertag_one_opponent_small": -0.224, "dmlab:x": 9.0}
    expected = {"human_normalised": pytest.approx(100.0), "human_normalised_capped": pytest.approx(50.0)}
    assert envs.mean_normalised(scores) == expected


def test_people_score_100_on_all_of_dmlab30_and_random_actions_0():
    tested = envs.tasks(envs.held_out("dmlab:dmlab30"))
    for score, wanted in (("human", 100.0), ("random", 0.0)):
        means = envs.mean_normalised({task: envs.reference_scores(task)[score] for task in tested})
        assert means["human_normalised"] == pytest.approx(wanted, abs=1e-9)
        assert means["human_normalised_capped"] == pytest.approx(wanted, abs=1e-9)
