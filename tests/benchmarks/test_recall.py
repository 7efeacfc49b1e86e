"""The task of benchmarks/recall.py: the answer is in one step, which is in a core's reach or not."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import recall
from benchmarks import recall as task


@pytest.mark.parametrize("draw", [recall.training_streams, recall.measured_streams])
def test_oracle_finds_the_answer_exactly_a_delay_back(draw: Callable[..., Any]) -> None:
    tokens, delays, answers = draw(64, torch.Generator().manual_seed(0))
    rows, steps = delays.nonzero(as_tuple=True)
    assert len(rows) > 64 * recall.TAGS
    cues = tokens[rows, steps - delays[rows, steps]]
    assert torch.equal(tokens[rows, steps], recall.TAGS * recall.SYMBOLS + cues // recall.SYMBOLS)
    assert torch.equal(answers[rows, steps], cues % recall.SYMBOLS)
    shown = torch.stack([(tokens // recall.SYMBOLS == tag).sum(dim=1) for tag in range(recall.TAGS)])
    assert shown.max() == 1, "a tag has one symbol in a stream"
    assert draw is recall.training_streams or set(delays.unique().tolist()) == {0, *recall.DELAYS.tolist()}


def test_streams_of_longer_delays_are_longer() -> None:
    tokens, delays, _ = recall.measured_streams(64, torch.Generator().manual_seed(0), torch.tensor([8, 320]))
    assert tokens.shape == (64, 352)
    assert set(delays.unique().tolist()) == {0, 8, 320}


@pytest.mark.parametrize("name", recall.RATES | recall.COMPRESSIONS)
def test_a_cue_is_seen_within_the_reach_and_nowhere_else(name: str) -> None:
    torch.manual_seed(0)
    assert recall.VARIANTS[name].layer_sizes[0].slots == 48, "all variants attend to equally many slots"
    network, cue = task.Recaller(recall.VARIANTS[name]).double().eval(), 5
    tokens = recall.measured_streams(1, torch.Generator().manual_seed(3)).tokens
    tokens = torch.cat([tokens, tokens])
    tokens[:, cue] = torch.tensor([0, 1])
    with torch.no_grad():
        first, second = network(tokens)[0]
    changed = (first - second).abs().amax(dim=-1) > 1e-12
    steps = torch.arange(len(changed))
    seen = (steps >= cue) & (
        steps - cue <= recall.reach(recall.VARIANTS[name]) + steps % recall.VARIANTS[name].segment_size
    )
    assert not (changed & ~seen).any()
    if "most-used" not in name:  # that function may drop it
        assert changed[seen].all()


def test_a_step_attends_to_as_many_routed_slots() -> None:
    for config in (config for name, config in recall.VARIANTS.items() if "routing" in name):
        assert config.layer_sizes[0].memory + config.layer_sizes[0].window == 32
    (stored,), (routed,) = (
        recall.VARIANTS[name].layer_sizes for name in ("transformer-xl, 144 slots", "routing, k = 8")
    )
    assert stored.slots == routed.slots


def test_training_gets_better_than_chance_and_recall_is_by_delay() -> None:
    # Two long segments, all of which fits into memory: the task in the least time.
    config = dataclasses.replace(task.core_config(), segment_size=96, memory_size=96)
    network, losses = task.train(config, seed=0, updates=50)
    assert sum(losses[-5:]) / 5 < math.log(recall.SYMBOLS) - 0.2
    by_delay = task.recall(network, seed=0, rows=16, batches=2)
    assert list(by_delay) == recall.DELAYS.tolist()
    assert list(task.recall(network, seed=0, rows=16, batches=1, delays=torch.tensor([8, 320]))) == [8, 320]
    assert sum(by_delay.values()) / len(recall.DELAYS) > 2 * task.CHANCE
