"""Specs as texts: their kinds, and the tasks of a spec."""

import re
import time
from contextlib import suppress

import pytest

from envs.registry import MAKERS
from envs.specs import KINDS, held_out, literals, parse_spec, tasks


def test_every_kind_can_be_made() -> None:
    assert tuple(MAKERS) == KINDS


def test_tasks_are_joined_by_commas() -> None:
    names = ["rooms:small,colors=ff0000+0000ff", "dmlab:a/b,test=True", "rooms:small"]
    assert list(tasks(",".join(names))) == names


@pytest.mark.parametrize("spec", ["gym:" + "a" * 500_000, "gym:a" + ",b=1" * 150_000], ids=len)
def test_a_long_spec_is_split_in_linear_time(spec: str) -> None:
    """It may be that of a foreign configuration, which `compressive runs` shows."""
    begin = time.process_time()
    with suppress(ValueError):
        assert tasks(spec) == (spec,)
    assert time.process_time() - begin < 0.8


def test_commas_in_brackets_and_quotes_belong_to_a_value() -> None:
    values = {
        "size": "(3,4)",
        "config": "{'a': [1,2], 'b,c': 'd:e,f'}",
        "goal": "'red, then [blue'",
        "said": "don't",
        "x": "1",
    }
    fields = ",".join(f"{field}={text}" for field, text in values.items())
    spec = f"gym:my_module:Maze-v0,{fields}"
    assert list(tasks(f"{spec},rooms:small")) == [spec, "rooms:small"]
    assert parse_spec(spec) == ("gym", "my_module:Maze-v0", values)
    assert str(parse_spec(spec)) == spec
    assert literals(values) == {
        "size": (3, 4),
        "config": {"a": [1, 2], "b,c": "d:e,f"},
        "goal": "red, then [blue",
        "said": "don't",
        "x": 1,
    }


def test_brackets_and_quotes_that_are_not_closed_are_named() -> None:
    for unclosed, expected in (("size=(3,4", ")"), ("size=[3,{4]", "}"), ("goal='red, x=1", "'")):
        with pytest.raises(ValueError, match=f"gym:a,{re.escape(unclosed)}.*: expected {re.escape(expected)} before"):
            tasks(f"gym:a,{unclosed}")


@pytest.mark.parametrize(
    ("spec", "twice"),
    [
        ("rooms:small,hud=False,bob_height=1,rooms:small,bob_height=1,hud=False", "rooms:small,bob_height=1,hud=False"),
        ("dmlab:dmlab30,dmlab:rooms_watermaze,instruction=True", "dmlab:rooms_watermaze,instruction=True"),
    ],
)
def test_a_task_that_comes_twice_is_refused(spec: str, twice: str) -> None:
    with pytest.raises(ValueError, match=f"environment '{twice}': expected each task once, got it twice"):
        tasks(spec)


def test_a_suite_has_its_fields_in_each_level() -> None:
    names = tasks("rooms:small,dmlab:dmlab30,shrink=2")
    assert len(names) == 31
    assert names[1] == "dmlab:rooms_collect_good_objects_train,instruction=True,shrink=2"
    assert all(name.endswith(",instruction=True,shrink=2") for name in names[1:])


def test_agents_are_tested_on_whole_games_and_their_own_rewards() -> None:
    trained = "envpool:Breakout-v5,episodic_life=True,frame_skip=4,reward_clip=True"
    assert held_out(trained) == "envpool:Breakout-v5,frame_skip=4"


def test_values_are_those_of_python_and_small_true_and_false() -> None:
    """As text, false would be true."""
    values = {"hud": "false", "sky": "true", "walls": "False", "name": "falsetto", "size": "3", "scale": "0.5"}
    expected = {"hud": False, "sky": True, "walls": False, "name": "falsetto", "size": 3, "scale": 0.5}
    assert literals(values) == expected


def test_what_is_no_value_of_python_stays_text() -> None:
    values = {"key": "{[1]: 2}", "member": "{{}}", "sum": "1 + x", "deep": "(" * 300}
    assert literals(values) == values
