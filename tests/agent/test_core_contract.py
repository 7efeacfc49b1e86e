"""The contract of `agent.core.contract`, for every core in `CORES` and several configs of each.

A new core adds its configs to `CONFIGS` in `cores.py`. Comparisons are in float64 unless stated
otherwise; the tolerance of 1e-12 allows for the order of additions.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agent.core import (
    CORES,
    Core,
    LSTMConfig,
    WaveNetConfig,
    concatenate_states,
    detach_state,
    index_state,
    leaves,
    make_core,
    map_state,
    matched_cores,
    state_bytes,
    state_to,
)
from agent.core.cores import CORE_CLASSES
from tests.agent.cores import CASES, CONFIGS, CYCLE, FORGETFUL, SIZE, WITH_SEGMENTS, every_core
from tests.agent.tiny import assert_same, normal, resets, sum_losses


@dataclasses.dataclass
class Sequence:
    """Random inputs [B, T, D] and resets [B, T]."""

    rows: int
    steps: int
    places: Collection[tuple[int, int]] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self.inputs = normal(self.rows, self.steps, SIZE, seed=self.seed)
        self.reset = resets(self.rows, self.steps, *self.places)


@st.composite
def sequences(draw: st.DrawFn, min_rows: int = 1, min_steps: int = 1, max_steps: int = 24) -> Sequence:
    rows = draw(st.integers(min_rows, 3))
    steps = draw(st.integers(min_steps, max_steps))
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, steps - 1))
    return Sequence(rows, steps, places=draw(st.sets(places, max_size=4)), seed=draw(st.integers(0, 99)))


def assert_same_state(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    def check(one: Tensor, other: Tensor) -> Tensor:
        assert_same(one, other, tolerance)
        return one

    map_state(check, actual, expected)


def dtypes_of(state: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in leaves(state)]


def run(core: Core, inputs: Tensor, reset: Tensor, state: Any = None, stops: Any = ()) -> tuple:
    """Features and final state of the calls that end at `stops` and at the end."""
    if state is None:
        state = core.initial_state(len(inputs))
    features = []
    start = 0
    for stop in (*stops, inputs.shape[1]):
        output = core(inputs[:, start:stop], reset[:, start:stop], state)
        features.append(output.features)
        state = output.state
        start = stop
    return torch.cat(features, dim=1), state


warm_states: dict[tuple, Any] = {}


def warm_state(core: Core, rows: int, steps: int, seed: int = 7) -> Any:
    """The state after random steps; computed once, because the cores of a config are equal."""
    key = core.config, rows, steps, seed
    if key not in warm_states:
        before = Sequence(rows, steps, {(0, steps // 2)}, seed)
        with torch.no_grad():
            _, warm_states[key] = run(core, before.inputs, before.reset)
    return warm_states[key]


def test_every_core_is_tested() -> None:
    assert CONFIGS.keys() - {"wavenet"} == CORES.keys()  # WaveNet is a core of `speech` alone
    assert CORE_CLASSES.keys() == {*CORES.values(), WaveNetConfig}
    sizes = {"model_size": SIZE, "num_layers": 2, "num_heads": 2, "mlp_size": 12, "segment_size": 4}
    assert matched_cores(sizes, memory=4, compressed=4).keys() == CORES.keys(), "presets know every core"
    for name, kind in CORES.items():
        assert {type(config) for config in CONFIGS[name].values()} == {kind}
    with pytest.raises(ValueError, match=r"core: expected a config of compressive, .*, got dict"):
        make_core({})


@every_core
@given(sequence=sequences(), stops=st.sets(st.integers(1, 23), max_size=5))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_any_cutting_gives_the_same(
    build: Callable[..., Any], config: Any, sequence: Any, stops: set[int], dtype: torch.dtype, tolerance: float
) -> None:
    core = build(config, dtype)
    inputs = sequence.inputs.to(dtype)
    features, state = run(core, inputs, sequence.reset)
    within = sorted(stop for stop in stops if stop < sequence.steps)
    cut_features, cut_state = run(core, inputs, sequence.reset, stops=within)
    assert_same(cut_features, features, tolerance)
    assert_same_state(cut_state, state, tolerance)


@every_core
@given(sequence=sequences(), offset=st.integers(0, 7))
def test_stepping_with_a_cache_equals_one_call(
    build: Callable[..., Any], config: Any, sequence: Any, offset: int
) -> None:
    core = build(config)
    rows, steps = sequence.reset.shape
    begin = warm_state(core, rows, 20 + offset)
    features, state = run(core, sequence.inputs, sequence.reset, begin)
    with torch.no_grad():
        stepped, cached = run(core, sequence.inputs, sequence.reset, core.with_cache(begin), range(1, steps))
        assert_same(stepped, features)
        assert_same_state(core.without_cache(cached), state)
        assert_same_state(cached, core.with_cache(state))
        in_one_call, _ = run(core, sequence.inputs, sequence.reset, core.with_cache(begin))
        assert_same(in_one_call, features)


@every_core
@given(sequence=sequences(min_rows=2), data=st.data())
def test_no_row_depends_on_another(build: Callable[..., Any], config: Any, sequence: Any, data: st.DataObject) -> None:
    core = build(config)
    rows = len(sequence.inputs)
    keep = data.draw(st.integers(0, rows - 1))
    begin = warm_state(core, rows, 22)
    features, state = run(core, sequence.inputs, sequence.reset, begin)

    # The row alone.
    alone, state_alone = run(core, sequence.inputs[[keep]], sequence.reset[[keep]], index_state(begin, [keep]))
    assert_same(alone, features[[keep]])
    assert_same_state(state_alone, index_state(state, [keep]))

    # Other rows with other inputs, other resets and another past.
    others = torch.arange(rows) != keep
    inputs = sequence.inputs.clone()
    inputs[others] = 100 * inputs[others].flip(1)
    reset = sequence.reset.clone()
    reset[others] = ~reset[others]

    def replace_others(leaf: Tensor, other: Tensor) -> Tensor:
        ones = [1] * (leaf.ndim - 1)
        return torch.where(others.view(-1, *ones), other, leaf)

    mixed = map_state(replace_others, begin, warm_state(core, rows, 22, seed=8))
    changed, changed_state = run(core, inputs, reset, mixed)
    assert_same(changed[keep], features[keep])
    assert_same_state(index_state(changed_state, [keep]), index_state(state, [keep]))


@every_core
@pytest.mark.parametrize("rows", [2, 3])
def test_rows_of_a_state_can_be_split_and_joined(build: Callable[..., Any], config: Any, rows: int) -> None:
    state = warm_state(build(config), rows, 22)
    parts = [index_state(state, slice(0, 1)), index_state(state, torch.arange(1, rows))]
    assert_same_state(concatenate_states(parts), state, 0)


@every_core
@given(sequence=sequences(min_rows=2, max_steps=8), later=sequences(min_rows=3, min_steps=20))
def test_nothing_before_a_reset_reaches_anything_after(
    build: Callable[..., Any], config: Any, sequence: Any, later: Any
) -> None:
    core = build(config)
    rows, begin = sequence.reset.shape
    inputs = torch.cat([sequence.inputs, later.inputs[:rows]], dim=1)
    reset = torch.cat([sequence.reset, later.reset[:rows]], dim=1)
    reset[0, begin] = True
    features, _ = run(core, inputs, reset, warm_state(core, rows, 20))

    # Before the reset of the first row, other inputs, other resets and another past.
    inputs[0, :begin] *= -100
    reset[0, :begin] = ~reset[0, :begin]
    changed, _ = run(core, inputs, reset, warm_state(core, rows, 20, seed=8))
    assert_same(changed[0, begin:], features[0, begin:])


@every_core
def test_a_reset_equals_a_fresh_start(build: Callable[..., Any], config: Any) -> None:
    core = build(config)
    sequence = Sequence(2, 40, {(1, 9)})
    fresh, _ = run(core, sequence.inputs, sequence.reset)
    sequence.reset[:, 0] = True
    reset, _ = run(core, sequence.inputs, sequence.reset)
    assert_same(reset, fresh)
    reset_later, _ = run(core, sequence.inputs, sequence.reset, warm_state(core, 2, CYCLE))
    assert_same(reset_later, fresh)


@every_core
@pytest.mark.parametrize("begin", [1, 5, 8, 13])
def test_no_gradient_crosses_resets_or_rows_or_runs_backwards(
    build: Callable[..., Any], config: Any, begin: int
) -> None:
    """In the first row an episode ends before step `begin`."""
    core = build(config)
    sequence = Sequence(2, 26, {(0, begin)})
    state = map_state(lambda leaf: leaf.clone().requires_grad_(leaf.is_floating_point()), warm_state(core, 2, 13))
    inputs = sequence.inputs.requires_grad_()
    features, _ = run(core, inputs, sequence.reset, state)

    def reached(part: Tensor) -> tuple[Tensor, list[bool]]:
        """Of the gradients: their size on each input [B, T], and which rows of the state have any."""
        sources = [inputs, *(leaf for leaf in leaves(state) if leaf.requires_grad)]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        of_inputs, *of_state = torch.autograd.grad(part.square().sum(), sources, **options)
        rows = [any(bool(grad[row].any()) for grad in of_state) for row in range(2)]
        return of_inputs.abs().sum(dim=2), rows

    # From the episode that starts there: to its own steps.
    on_inputs, rows_of_state = reached(features[0, begin:])
    assert on_inputs[0, begin:].all()
    assert not on_inputs[0, :begin].any()
    assert not on_inputs[1].any()
    assert rows_of_state == [False, False]

    # From the episode before it: to its own past.
    on_inputs, rows_of_state = reached(features[0, :begin])
    assert not on_inputs[0, begin:].any()
    assert not on_inputs[1].any()
    assert rows_of_state == [config not in FORGETFUL, False]


@every_core
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("where", ["inputs", "state"])
def test_what_is_not_finite_is_gone_with_its_step(
    build: Callable[..., Any], config: Any, where: str, value: float
) -> None:
    """For other steps, the state, losses and gradients it counts as 0."""
    core = build(config).train()
    sequence = Sequence(2, 26, {(0, 13), (1, 0)})
    broken = torch.zeros(2, 26, SIZE, dtype=torch.bool)
    if where == "inputs":
        broken[0, [0, 3, 11]] = True
        broken[0, 12, 1] = True
        broken[1, 24] = True
    good_steps = ~broken.any(dim=2)

    def outcome(value: float) -> list[Any]:
        """All that a call returns or learns if the broken inputs, or all of the state, have a value."""
        inputs = sequence.inputs.masked_fill(broken, value)
        state = warm_state(core, 2, 21)
        if where == "state":
            state = map_state(lambda leaf: torch.full_like(leaf, value) if leaf.is_floating_point() else leaf, state)

        core.zero_grad()
        output = core(inputs, sequence.reset, state)
        good = inputs.isfinite().all(dim=2)
        assert output.features[good].isfinite().all()
        assert output.features[~good].isnan().all()
        (output.features[0, 13:].square().mean() + sum_losses(output)).backward()
        grads = tuple(parameter.grad for parameter in core.parameters() if parameter.grad is not None)

        with torch.no_grad():
            stepped, after = run(core, inputs, sequence.reset, core.with_cache(state), range(1, 26))
        losses = tuple(output.losses.values())
        return [output.features[good_steps], output.state, losses, grads, stepped[good_steps], after]

    for actual, expected in zip(outcome(value), outcome(0.0)):
        assert_same_state(actual, expected, 0)


@every_core
@given(sequence=sequences(min_steps=2), data=st.data())
def test_nothing_later_reaches_anything_earlier(
    build: Callable[..., Any], config: Any, sequence: Any, data: st.DataObject
) -> None:
    core = build(config)
    now = data.draw(st.integers(1, sequence.steps - 1))
    begin = warm_state(core, sequence.rows, 21)
    features, _ = run(core, sequence.inputs, sequence.reset, begin)
    inputs = sequence.inputs.clone()
    inputs[:, now:] *= -100
    reset = sequence.reset.clone()
    reset[:, now:] = ~reset[:, now:]
    changed, _ = run(core, inputs, reset, begin)
    assert_same(changed[:, :now], features[:, :now])


@every_core
def test_every_parameter_still_learns_after_many_segments(build: Callable[..., Any], config: Any) -> None:
    core = build(config).train()
    state = core.initial_state(2)
    for seed in range(4):
        core.zero_grad(set_to_none=True)
        sequence = Sequence(2, 12, {(1, 5)} if seed == 1 else set(), seed)
        output = core(sequence.inputs, sequence.reset, detach_state(state))
        state = output.state
        target = Sequence(2, 12, seed=seed + 50).inputs
        ((output.features - target).square().mean() + sum_losses(output)).backward()
        for loss in output.losses.values():
            assert loss.total.shape == loss.count.shape == (len(loss.total),)

    untrained = set()
    if getattr(config, "compression_loss", "") == "none":
        untrained = set(core.compression_parameters())
    for name, parameter in core.named_parameters():
        assert parameter.requires_grad, name
        if parameter in untrained:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name

    with torch.no_grad():
        assert core(sequence.inputs, sequence.reset, core.initial_state(2)).losses == {}


@every_core
def test_shapes_alone_decide_the_operations(build: Callable[..., Any], config: Any) -> None:
    """On the meta device tensors have no values: reading one, or branching on it, is an error."""
    with torch.device("meta"):  # as `build_network` does for large networks
        make_core(config)
    core = build(config).to("meta").train()

    def empty(steps: int) -> tuple[Tensor, Tensor]:
        inputs = torch.empty(2, steps, SIZE, dtype=torch.float64, device="meta")
        return inputs, torch.empty(2, steps, dtype=torch.bool, device="meta")

    state = core.initial_state(2)
    shapes = [leaf.shape for leaf in leaves(state)]
    for steps in (1, 7):
        output = core(*empty(steps), detach_state(state))
        (output.features.sum() + sum_losses(output)).backward()
        state = output.state
        assert [leaf.shape for leaf in leaves(state)] == shapes
    with torch.no_grad():
        core(*empty(1), core.with_cache(state))


@every_core
def test_mixed_precision_is_near_full_precision(build: Callable[..., Any], config: Any) -> None:
    """The second of two calls, so that memories are not empty."""
    core = build(config, torch.float32).train()
    sequence = Sequence(2, 24, {(0, 9), (1, 20)})
    inputs = sequence.inputs.float()
    state = core.initial_state(2)
    half = 13

    def learn(mixed: bool) -> tuple[Tensor, Any, Tensor]:
        """Features, state, and the losses and gradients as one vector."""
        core.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            first = core(inputs[:, :half], sequence.reset[:, :half], state)
            second = core(inputs[:, half:], sequence.reset[:, half:], first.state)
        features = second.features.float()
        losses = torch.stack([*(loss.value for loss in second.losses.values()), torch.zeros(())])
        assert losses.dtype == torch.float32
        (features.square().mean() + losses.sum()).backward()
        grads = [parameter.grad.flatten() for parameter in core.parameters() if parameter.grad is not None]
        return features, second.state, torch.cat([losses.detach(), *grads])

    features, after, learning = learn(mixed=True)
    assert dtypes_of(after) == dtypes_of(state)
    expected_features, _, expected_learning = learn(mixed=False)
    # bfloat16 has 8 bits.
    assert (features - expected_features).norm() < 0.05 * expected_features.norm()
    assert (learning - expected_learning).norm() < 0.2 * expected_learning.norm()

    # Step by step with a cache.
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        stepped, cached = run(core, inputs, sequence.reset, core.with_cache(state), range(1, 24))
    assert (stepped[:, half:].float() - expected_features).norm() < 0.05 * expected_features.norm()
    assert dtypes_of(core.without_cache(cached)) == dtypes_of(state)


@every_core
def test_states_are_batch_first_and_of_fixed_shape(build: Callable[..., Any], config: Any) -> None:
    core = build(config)

    def shapes_and_dtypes(state: Any) -> list[tuple]:
        return [(leaf.shape, leaf.dtype) for leaf in leaves(state)]

    begin = core.initial_state(3)
    for cache in (core.without_cache, core.with_cache):
        expected = shapes_and_dtypes(cache(begin))
        assert all(shape[0] == 3 for shape, _ in expected)
        for steps in (1, 3, 4, 17, 40):
            sequence = Sequence(3, steps, {(1, steps // 2)})
            with torch.no_grad():
                features, state = run(core, sequence.inputs, sequence.reset, cache(begin))
            assert features.shape == sequence.inputs.shape
            assert shapes_and_dtypes(state) == expected
    assert 3 * state_bytes(core.initial_state(1)) == state_bytes(begin)


@every_core
def test_a_call_does_not_change_its_arguments(build: Callable[..., Any], config: Any) -> None:
    core = build(config)
    sequence = Sequence(2, 20, {(0, 4)})
    with torch.no_grad():
        arguments = (sequence.inputs, sequence.reset, core.with_cache(warm_state(core, 2, 5)))
        before = map_state(torch.clone, arguments)
        run(core, *arguments)
    assert_same_state(arguments, before, 0)


@every_core
def test_bad_arguments_are_named(build: Callable[..., Any], config: Any) -> None:
    core = build(config)
    inputs = normal(2, 3, SIZE)
    reset = resets(2, 3)
    state = core.initial_state(2)
    wrong: dict[str, list[Any]] = {
        "inputs": [inputs[0], inputs[..., :7], inputs[:, :0], inputs.long()],
        "reset": [reset.T, reset.double(), reset.to("meta")],
        "state": [],
    }

    # A state of another core, or nothing if that is of the same type.
    other = "gru/one-layer" if isinstance(config, LSTMConfig) else "lstm/one-layer"
    other_state = build(CASES[other]).initial_state(2)
    wrong["state"].append(None if type(other_state) is type(state) else other_state)
    # More rows, another device, another precision.
    if list(leaves(state)):
        floats = map_state(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, state)
        wrong["state"] += [core.initial_state(3), state_to(state, "meta"), floats]
    # A larger memory, more features, and steps that no segment has.
    if config in WITH_SEGMENTS.values():
        wider = dataclasses.replace(config, memory_size=tuple(sizes.memory + 2 for sizes in config.layer_sizes))
        wrong["state"].append(build(wider).initial_state(2))
        broader = map_state(lambda leaf: torch.cat([leaf, leaf], dim=-1) if leaf.ndim > 2 else leaf, state)
        wrong["state"] += [broader, state._replace(offset=-1), state._replace(offset=config.segment_size)]
    # Another dilation, and one layer fewer.
    if isinstance(config, WaveNetConfig):
        wrong["state"] += [state._replace(past=state.past[::-1]), state._replace(past=state.past[1:])]

    good = {"inputs": inputs, "reset": reset, "state": state}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
                core(**{**good, name: value})


@every_core
def test_states_at_different_offsets_are_not_joined(build: Callable[..., Any], config: Any) -> None:
    core = build(config)
    states = [warm_state(core, 1, 20), warm_state(core, 1, 21)]
    if getattr(config, "segment_size", 1) > 1:
        with pytest.raises(ValueError, match=r"states: expected one offset into the segment, .*, got \[\d+, \d+\]"):
            concatenate_states(states)
    else:
        concatenate_states(states)


@pytest.mark.parametrize("name", ["lru", "ffm", "deltanet"])
@pytest.mark.parametrize("steps", [1, 9])
def test_slow_forgetting_needs_float32(build: Callable[..., Any], name: str, steps: int) -> None:
    """Also in single steps, which torch could compute: they would forget what is nearly kept."""
    core = build(next(iter(CONFIGS[name].values()))).bfloat16()
    with pytest.raises(ValueError, match=r"expected parameters of float32 or wider .*, got torch\.bfloat16"):
        core(normal(2, steps, SIZE).bfloat16(), resets(2, steps), core.initial_state(2))
