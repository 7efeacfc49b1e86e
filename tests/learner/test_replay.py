"""The buffer of replayed rows against lists, burn-in against the whole unroll, and what replayed rows count for."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import concatenate_states, index_state, leaves
from agent.precision import autocast
from agent.trajectory import EnvOutput, Trajectory, loss_mask, validate
from learner.config import LearnerConfig, ReplayConfig
from learner.learner import Learner, split
from learner.replay import Replay, burn_in, mark
from tests.agent import agents
from tests.capture import Capturable
from tests.learner.conftest import TinyAgent

ROWS = 6


def make_learner(agent: Any, **fields: Any) -> Learner:
    return Learner(agent, LearnerConfig(device="cpu", learning_rate=0.01), 1000, rows=ROWS, **fields)


@pytest.fixture
def batch(trajectory: Any) -> Callable[..., Trajectory]:
    """Makes rows that `actor_id` tells apart, over all batches."""

    def make(number: int, rows: int = ROWS) -> Trajectory:
        made = trajectory(rows, 3, seed=number)
        ids = number * rows + torch.arange(rows)
        version = torch.full((rows,), number)
        return made._replace(actor_id=ids, version=version)

    return make


def equal(first: Any, second: Any) -> bool:
    """All leaves are equal, bit by bit."""
    return all(one.equal(other) for one, other in zip(leaves(first), leaves(second), strict=True))


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def pick(batches: list[Trajectory], rows: Any) -> Trajectory:
    """Rows of the batches, by their `actor_id`."""
    return index_state(concatenate_states(batches), rows)


def unmarked(mixed: Trajectory, rows: Tensor) -> Trajectory:
    """Some rows of a mixed batch, as they were before it was mixed."""
    return index_state(mixed, rows)._replace(replayed=None)


@pytest.mark.parametrize(("share", "count"), [(0.25, 2), (0.5, 6), (0.75, 18)])
def test_batches_are_fresh_rows_and_some_of_the_newest(
    tiny_agent: Callable[..., TinyAgent], share: float, count: int, batch: Callable[..., Trajectory]
) -> None:
    """In a ring that is not a multiple of a batch; all fields of a row stay together."""
    learner = make_learner(tiny_agent())
    replay = Replay(ReplayConfig(share), learner, capacity=20, seed=0)
    batches = [batch(number) for number in range(8)]
    for number, fresh in enumerate(batches):
        learner.version = number
        mixed = replay.mix(fresh)

        # Nothing is replayed while there are too few rows.
        added_before = list(range(number * ROWS))
        kept = added_before[-20:]
        if len(kept) < count:
            assert equal(mixed, fresh)
            assert mixed.replayed is None
            continue

        # The fresh rows are there, in order; the others are different rows of those that are kept.
        validate(mixed)
        assert equal(unmarked(mixed, ~mixed.replayed), fresh)
        again = mixed.replayed.nonzero()[:, 0]
        chosen = mixed.actor_id[again].tolist()
        assert len(chosen) == count
        assert len(set(chosen)) == count
        assert set(chosen) <= set(kept)
        assert equal(unmarked(mixed, again), pick(batches, chosen))

        # Each update has its share of replayed rows.
        parts = [mixed.replayed[part] for part in split(len(mixed.replayed), ROWS)]
        assert len(parts) == replay.updates
        for part in parts:
            assert len(part) in (4, ROWS)
            assert abs(part.float().mean() - share) < 0.13
    assert {len(rows) for rows in replay.state_dict().values()} == {20}


def test_updates_may_have_fewer_rows_than_a_batch_has_fresh_ones(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """As many updates are foreseen as are made, and each has its share of fresh rows."""
    learner = Learner(tiny_agent(), LearnerConfig(device="cpu"), 1000, rows=ROWS // 2)
    replay = Replay(ReplayConfig(0.5), learner, 20, seed=0, fresh=ROWS)
    for number, updates in enumerate((2, 4, 4)):
        assert replay.updates == updates
        before = learner.version
        mixed = replay.mix(batch(number))
        learner.update(mixed)
        assert learner.version - before == updates
        if number > 0:
            fresh_rows = [int((~mixed.replayed[part]).sum()) for part in split(2 * ROWS, ROWS // 2)]
            assert max(fresh_rows) - min(fresh_rows) <= 1


def test_rows_are_drawn_uniformly_and_anew(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """From the four batches that the buffer has room for."""
    learner = make_learner(tiny_agent())
    replay = Replay(ReplayConfig(0.5), learner, 4 * ROWS, seed=0)
    rows_by_age = collections.Counter[int]()
    for number in range(400):
        learner.version = number
        mixed = replay.mix(batch(number))
        if number > 0:
            numbers = mixed.actor_id[mixed.replayed] // ROWS
            rows_by_age.update((number - numbers).tolist())
    assert set(rows_by_age) == {1, 2, 3, 4}, "batches ago"
    for count in rows_by_age.values():
        assert abs(count - 400 * ROWS / 4) < 100


@pytest.mark.parametrize(("count", "most", "sizes"), [(6, 6, [6]), (12, 6, [6, 6]), (8, 6, [4, 4]), (13, 6, [4, 4, 5])])
def test_parts_are_as_equal_as_possible(count: int, most: int, sizes: list[int]) -> None:
    parts = split(count, most)
    assert [part.stop - part.start for part in parts] == sizes
    assert [index for part in parts for index in range(count)[part]] == list(range(count))


def test_a_restored_buffer_continues_as_the_first(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory], trajectory: Callable[..., Trajectory]
) -> None:
    """Though its ring begins elsewhere; a smaller one has the newest rows, and rows of another length are forgotten."""
    learner = make_learner(tiny_agent())
    first = Replay(ReplayConfig(0.5), learner, capacity=20, seed=3)
    for number in range(5):
        first.mix(batch(number))
    saved = first.state_dict()

    second = Replay(ReplayConfig(0.5), learner, capacity=20, seed=3)
    small = Replay(ReplayConfig(0.5), learner, capacity=12, seed=3)
    of_longer_unrolls = Replay(ReplayConfig(0.5), learner, capacity=20, seed=3)
    for replay in (second, small, of_longer_unrolls):
        replay.load_state_dict(saved)
    assert same_tensors(second.state_dict(), saved), "before the first batch"

    for number in range(5, 9):
        learner.version = number
        fresh = batch(number)
        expected = first.mix(fresh)
        assert expected.replayed.sum() == ROWS
        assert equal(second.mix(fresh), expected)
        # Twelve rows are two batches.
        assert small.mix(fresh).actor_id.min() >= (number - 2) * ROWS
        # The first batch has no row of the same length to be replayed beside it.
        longer = of_longer_unrolls.mix(trajectory(ROWS, 4))
        assert (longer.replayed is None) == (number == 5)
    assert same_tensors(second.state_dict(), first.state_dict())


def test_an_empty_buffer_has_an_empty_state(tiny_agent: Callable[..., TinyAgent]) -> None:
    assert Replay(ReplayConfig(0.5), make_learner(tiny_agent()), 20, seed=3).state_dict() == {}


def test_a_damaged_state_is_an_empty_buffer(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner = make_learner(tiny_agent())
    replay = Replay(ReplayConfig(0.5), learner, 20, seed=3)
    replay.mix(batch(0))
    saved = replay.state_dict()

    # A tensor too many, and one with too few rows.
    replay.load_state_dict({**saved, "more": saved["0"], "1": saved["1"][:1]})
    assert replay.mix(batch(1)).replayed is None

    # A tensor is missing.
    del saved["1"]
    replay.load_state_dict(saved)
    assert replay.mix(batch(2)).replayed is None


@pytest.mark.parametrize("core", agents.CORES)
def test_burn_in_is_a_shorter_unroll_from_the_middle(core: Any) -> None:
    """With the weights that acted: outputs and losses are those of the unroll from there on."""
    learner = make_learner(agents.make_agent(agents.CORES[core]))
    whole = agents.make_trajectory(3, 12, core=agents.CORES[core])
    burnt = burn_in(learner, whole, steps=4)
    assert validate(burnt) == (3, 12)
    assert not any(leaf.requires_grad for leaf in leaves(burnt))

    def play(trajectory: Trajectory) -> Any:
        now = trajectory.env_output
        return learner.agent(now.observation, now.last_action, now.reward, now.reset, trajectory.core_state)

    # The agent's outputs.
    of_burnt = play(burnt)
    of_whole = play(whole)
    torch.testing.assert_close(of_burnt.policy_parameters[:, :9], of_whole.policy_parameters[:, 4:])
    torch.testing.assert_close(of_burnt.value[:, :9], of_whole.value[:, 4:])

    # The four steps that were moved to the end are in no loss.
    mask = loss_mask(burnt)
    assert mask[:, :8].equal(loss_mask(whole)[:, 4:])
    assert not mask[:, 8:].any()

    # The sums of the losses are those of a trajectory without these steps.
    env_output = {name: leaf[:, 4:] for name, leaf in whole.env_output._asdict().items()}
    action = whole.action[:, 4:]
    policy_parameters = whole.policy_parameters[:, 4:]
    short = burnt._replace(**env_output, action=action, policy_parameters=policy_parameters)

    def sums(trajectory: Trajectory) -> dict[str, Tensor]:
        found = learner._compute_gradients(trajectory, learner._settings()).sums
        names = "loss/policy", "loss/baseline", "loss/entropy", "importance/mean_rho", "value/target_mean", "steps"
        return {name: found[name] for name in names}

    torch.testing.assert_close(sums(burnt), sums(short))


def test_burn_in_uses_the_present_weights(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner = make_learner(tiny_agent())
    replay = Replay(ReplayConfig(0.5, burn_in=2), learner, ROWS, seed=0)
    old = batch(0)
    replay.mix(old)
    with_old_weights = burn_in(learner, old, 2)
    learner.update(old)

    mixed = replay.mix(batch(1))
    replayed = unmarked(mixed, mixed.actor_id < ROWS)
    expected = burn_in(learner, index_state(old, replayed.actor_id), 2)  # in this order, which changes rounding
    assert equal(replayed, expected)
    assert not replayed.core_state.hidden.allclose(with_old_weights.core_state.hidden[replayed.actor_id])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_burn_in_computes_as_an_actor_does(precision: str) -> None:
    """Without dropout, also between updates, which have it, and in the learner's precision."""
    core = dataclasses.replace(agents.CORES["compressive"], dropout=0.5)
    agent = agents.make_agent(core)
    whole = agents.make_trajectory(3, 12, core=core)
    learner = Learner(agent, LearnerConfig(device="cpu", precision=precision), 1000)

    # The agent is in training mode in updates, and never in burn-in.
    modes = list[bool]()
    agent.register_forward_hook(lambda module, given, output: modes.append(module.training))
    learner.update(whole)
    burn_in(learner, whole, 4)
    state = burn_in(learner, whole, 4).core_state
    learner.update(whole._replace(core_state=state))
    assert modes == [True, False, False, True]

    # The state is the one that an actor computes, also with weights that were loaded since.
    learner.load_state_dict(learner.state_dict() | {"weights": agents.make_agent(core).state_dict()})
    found = burn_in(learner, whole, 4).core_state

    def state_of_actor() -> Any:
        begin = [leaf[:, :4] for leaf in (whole.observation, whole.last_action, whole.reward, whole.reset)]
        with torch.no_grad():
            return agent(*begin, whole.core_state).state

    agent.eval()
    with autocast(learner.device, precision):
        assert equal(found, state_of_actor())
    in_float32 = state_of_actor()
    assert equal(found, in_float32) == (precision == "float32")


@pytest.mark.parametrize("restored", [False, True])
def test_a_buffer_that_was_cleared_is_an_empty_one(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory], restored: bool
) -> None:
    """Also of rows that were restored and not yet added."""
    replay = Replay(ReplayConfig(0.5), make_learner(tiny_agent()), 20, seed=0)
    for number in range(2):
        assert replay.updates == 1 + number
        replay.mix(batch(number))
    if restored:
        replay.load_state_dict(replay.state_dict())

    replay.clear()
    assert replay.state_dict() == {}
    assert replay.updates == 1
    assert replay.mix(batch(2)).replayed is None
    mixed = replay.mix(batch(3))
    assert set((mixed.actor_id[mixed.replayed] // ROWS).tolist()) == {2}, "only rows from after it was cleared"


def test_the_choice_depends_on_the_seed_and_the_version(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    learner = make_learner(tiny_agent())
    batches = [batch(number) for number in range(8)]

    def chosen(seed: int, version: int) -> list[int]:
        """The rows that are replayed with the last batch."""
        replay = Replay(ReplayConfig(0.5), learner, 10 * ROWS, seed)
        learner.version = version
        for fresh in batches:
            mixed = replay.mix(fresh)
        return mixed.actor_id[mixed.replayed].tolist()

    usual = chosen(seed=0, version=5)
    other_seed = chosen(seed=1, version=5)
    other_version = chosen(seed=0, version=6)
    assert chosen(seed=0, version=5) == usual
    assert usual != other_seed
    assert usual != other_version
    assert other_seed != other_version


def test_replayed_rows_are_learned_from_and_not_counted(
    tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]
) -> None:
    """Two learners learn from the same rows. One is told which of them are replayed."""
    untold = make_learner(tiny_agent())
    told = make_learner(tiny_agent())
    for learner in (untold, told):
        learner.version = 10
    fresh = batch(9, rows=2)  # of the version before: a lag of 1
    old = batch(3, rows=4)  # a lag of 7
    plain = untold.update(concatenate_states([fresh, old]))
    marked = concatenate_states([mark(fresh, False), mark(old, True)])
    metrics = told.update(marked)

    # The weights are the same. Only steps of fresh rows count, and only their lag is that of the policy.
    assert equal(tuple(untold.weights().values()), tuple(told.weights().values()))
    assert untold.steps == int(loss_mask(marked).sum())
    assert told.steps == int(loss_mask(fresh).sum())
    assert plain["policy_lag/mean"] == pytest.approx((2 * 1 + 4 * 7) / 6)
    assert metrics["policy_lag/mean"] == pytest.approx(1)
    assert metrics["policy_lag/max"] == pytest.approx(1)
    assert metrics["replay/age"] == pytest.approx(7)
    assert metrics["replay/share"] == pytest.approx(4 / 6)
    assert plain.keys() == metrics.keys() - {"replay/age", "replay/share"}


def test_nothing_waits_for_the_device(tiny_agent: Callable[..., TinyAgent], batch: Callable[..., Trajectory]) -> None:
    learner = make_learner(tiny_agent(), unread=True)
    mixed = concatenate_states([mark(batch(0), False), mark(batch(1), True)])
    with Capturable() as mode:
        assert learner.update(mixed, read=False) == {}
    assert mode.forbidden == {}


def test_the_environments_part_is_the_first_fields_of_a_trajectory(batch: Callable[..., Trajectory]) -> None:
    """In this order, which checkpoints keep."""
    made = batch(0)
    assert Trajectory._fields[: len(EnvOutput._fields)] == EnvOutput._fields
    assert all(getattr(made.env_output, name) is getattr(made, name) for name in EnvOutput._fields)


def test_the_mark_is_checked(batch: Callable[..., Trajectory]) -> None:
    with pytest.raises(ValueError, match=r"replayed: expected torch.bool \[6\], got torch.int64 \[6\]"):
        validate(batch(0)._replace(replayed=torch.zeros(ROWS, dtype=torch.int64)))
