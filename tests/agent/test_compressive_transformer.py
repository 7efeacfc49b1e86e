"""The Compressive Transformer against the paper, transcribed slowly: one query, one head and one slot at a time.

`Literal` is Algorithm 1 with Transformer-XL's relative attention and `literal_loss` is Algorithm 2 (Rae et al. 2020).
They know no masks, no batches and no fixed shapes: memories are python lists that grow, each member remembers its
episode and the attention that it got, and what is of another episode is left out of the sum.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from agent.core import (
    CompressiveState,
    CompressiveTransformer,
    CompressiveTransformerConfig,
    GatedTransformerXLConfig,
    Sizes,
    TransformerXLConfig,
    index_state,
    leaves,
)
from agent.core.attention import relative_shift, sinusoids
from agent.core.compression import COMPRESSIONS
from agent.core.layer import Layer

SIZE, HEADS = 4, 2
NORMS, GATES, POSITIONS = ("post", "pre"), ("residual", "gru"), ("slot", "time")
TRAINED = ("convolution", "dilated")  # the compression functions with parameters


def config_of(
    n_s: int = 4, n_m: Sizes = 4, n_cm: Sizes = 4, c: Sizes = 2, **fields: Any
) -> CompressiveTransformerConfig:
    defaults = {"model_size": SIZE, "num_layers": 2, "num_heads": HEADS, "mlp_size": 6}
    sizes = {"segment_size": n_s, "memory_size": n_m, "compressed_size": n_cm, "compression_rate": c}
    return CompressiveTransformerConfig(**{**defaults, **sizes, **fields})


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def resets(rows: int, steps: int, *places: tuple[int, int]) -> Tensor:
    reset = torch.zeros(rows, steps, dtype=torch.bool)
    for row, step in places:
        reset[row, step] = True
    return reset


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def validity(core: CompressiveTransformer, state: CompressiveState, layer: int = 0) -> tuple[Tensor, ...]:
    """Which slots belong to their row's episode, [B, n_cm], [B, n_m] and [B, n_s]."""
    sizes = core.layers[layer].sizes
    filled = state.age[:, None] >= core.layers[layer].old_ages(state.phase)
    unfilled = torch.zeros(len(filled), sizes.segment - state.phase, dtype=torch.bool)
    return torch.cat([filled, unfilled], dim=1).split([sizes.compressed, sizes.memory, sizes.segment], dim=1)


# The literal transcription.


@dataclass(eq=False)
class Slot:
    """A layer input [D], the episode that it belongs to (None: nothing valid went into it), and its use so far."""

    vector: Tensor
    episode: int | None
    received: float = 0.0
    """Attention, the mean over heads, summed over queries."""
    queries: int = 0
    """How many queries could attend to it."""

    @property
    def usage(self) -> float:
        return self.received / self.queries


def literal_norm(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    mean = sum(x) / len(x)
    variance = sum((element - mean) ** 2 for element in x) / len(x)
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def literal_gate(gate: Any, x: Tensor, y: Tensor) -> Tensor:
    """Parisotto et al. 2019, section 3.2: the gated recurrent unit."""
    w_r, w_z, w_g = gate.branch.weight.chunk(3)
    u_r, u_z = gate.stream.weight.chunk(2)
    r = torch.sigmoid(w_r @ y + u_r @ x)
    z = torch.sigmoid(w_z @ y + u_z @ x - gate.bias)
    h = torch.tanh(w_g @ y + gate.candidate.weight @ (r * x))
    return (1 - z) * x + z * h


def literal_encoding(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * k / SIZE) for k in range(SIZE // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def literal_attention(layer: Layer, query: Tensor, slots: list[tuple[Tensor, int]]) -> tuple[Tensor, list[float]]:
    """Dai et al. 2019, section 3.3, of one query over (slot, distance), and each slot's mean weight over heads:

    A_ij = q_i k_j + q_i W_R R_(i-j) + u k_j + v W_R R_(i-j), its softmax over j weighs the values.
    """
    attention = layer.attention
    w_k, w_v = attention.key_value.weight.chunk(2)
    size = SIZE // HEADS
    joined, mean_weights = [], [0.0] * len(slots)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        q = (attention.query.weight @ query)[part]
        u, v = attention.content_bias[head, 0], attention.position_bias[head, 0]
        scores = []
        for slot, distance in slots:
            k = (w_k @ slot)[part]
            r = (attention.position.weight @ literal_encoding(distance))[part]
            scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(size))
        weights = [score.exp() / sum(other.exp() for other in scores) for score in scores]
        joined.append(sum(weight * (w_v @ slot)[part] for weight, (slot, _) in zip(weights, slots)))
        mean_weights = [mean + float(weight.detach()) / HEADS for mean, weight in zip(mean_weights, weights)]
    return attention.output.weight @ torch.cat(joined), mean_weights


def literal_group(layer: Layer, kind: str, group: list[Tensor]) -> Tensor:
    if kind == "mean":
        return sum(group) / len(group)
    if kind == "max":
        return torch.stack([max(column) for column in zip(*group)])
    # A convolution with kernel and stride c: one matrix for each place in the group.
    kernel = layer.compression.group
    return sum(kernel.weight[:, k * SIZE : (k + 1) * SIZE] @ x for k, x in enumerate(group)) + kernel.bias


def literal_dilation(layer: Layer, old: list[Tensor]) -> list[Tensor]:
    """Two convolutions of width 3 over all that is evicted, zeros beyond it; ReLU and residual sum after each."""
    for convolution, dilation in zip(layer.compression.dilated, (1, 2)):
        new = []
        for place, x in enumerate(old):
            y = convolution.bias
            for k, neighbour in enumerate((place - dilation, place, place + dilation)):
                if 0 <= neighbour < len(old):
                    y = y + convolution.weight[:, :, k] @ old[neighbour]
            new.append(x + y.clamp(min=0))
        old = new
    return old


def literal_compression(layer: Layer, kind: str, evicted: list[Slot], now: int) -> list[Slot]:
    """Section 3.2: from n_s slots, those that are not of this episode zeroed, to n_s / c."""
    c = layer.sizes.rate
    if kind == "most-used":
        # Of this episode the most used; of equals, and where there are too few, the newest.
        ranks = [(slot.usage if slot.episode == now else -1.0, place) for place, slot in enumerate(evicted)]
        kept = sorted(place for _, place in sorted(ranks, reverse=True)[: len(evicted) // c])
        return [Slot(evicted[place].vector, evicted[place].episode) for place in kept]
    vectors = [slot.vector for slot in evicted]
    if kind == "dilated":
        vectors = literal_dilation(layer, vectors)
    new = []
    for g in range(0, len(evicted), c):
        alive = any(slot.episode == now for slot in evicted[g : g + c])
        new.append(Slot(literal_group(layer, kind, vectors[g : g + c]), now if alive else None))
    return new


def literal_decoding(layer: Layer, new: list[Tensor]) -> list[Tensor]:
    """The mirror of the convolution: one matrix for each place in the group."""
    decoder, c = layer.decoder, layer.sizes.rate
    parts = [slice(k * SIZE, (k + 1) * SIZE) for k in range(c)]
    return [decoder.weight[part] @ x + decoder.bias[part] for x in new for part in parts]


def literal_loss(layer: Layer, pre_norm: bool, h: list[Tensor], old: list[Tensor], new: list[Tensor]) -> Tensor:
    """Algorithm 2 of one layer: content-based attention over old memories and over compressed ones, compared."""
    w_q, (w_k, w_v) = layer.attention.query.weight, layer.attention.key_value.weight.chunk(2)
    size = SIZE // HEADS
    if pre_norm:
        h, old, new = ([literal_norm(layer.attention_norm, x) for x in xs] for xs in (h, old, new))

    def attend(query: Tensor, slots: list[Tensor]) -> Tensor:
        joined = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = [(w_q @ query)[part] @ (w_k @ slot)[part] / math.sqrt(size) for slot in slots]
            weights = torch.stack(scores).softmax(dim=0)
            joined.append(sum(weight * (w_v @ slot)[part] for weight, slot in zip(weights, slots)))
        return torch.cat(joined)

    errors = [(attend(query, old) - attend(query, new)) ** 2 for query in h]
    return sum(error.sum() for error in errors) / (len(h) * SIZE)


class Literal:
    """Algorithm 1 for one row.

    `losses[layer]` has an entry a full segment, a list of the terms that the loss is the mean of: one (attention), one
    for every valid memory (auto-encoding), none where nothing valid was evicted.
    """

    def __init__(self, core: CompressiveTransformer) -> None:
        self.core, self.config = core, core.config
        self.memory: list[list[Slot]] = [[] for _ in core.layers]
        self.compressed: list[list[Slot]] = [[] for _ in core.layers]
        self.losses: list[list[list[Tensor]]] = [[] for _ in core.layers]

    def run(self, inputs: Tensor, reset: Tensor) -> Tensor:
        episodes = list(itertools.accumulate(int(begins) for begins in reset))
        n_s, features = self.config.segment_size, []
        for begin in range(0, len(inputs), n_s):
            h = [Slot(x, episode) for x, episode in zip(inputs[begin : begin + n_s], episodes[begin : begin + n_s])]
            for index, layer in enumerate(self.core.layers):
                outputs = [self.step(index, layer, h, t) for t in range(len(h))]
                if len(h) == n_s:
                    self.remember(index, layer, h)
                h = [Slot(output, slot.episode) for slot, output in zip(h, outputs)]
            features += [slot.vector for slot in h]
        if self.config.norm == "pre":
            features = [literal_norm(self.core.final_norm, x) for x in features]
        return torch.stack(features)

    def step(self, index: int, layer: Layer, h: list[Slot], t: int) -> Tensor:
        """Lines 5, 6, 7 and 12 for one step."""
        config, memory, compressed = self.config, self.memory[index], self.compressed[index]
        pre_norm, x = config.norm == "pre", h[t].vector
        width = layer.sizes.rate if config.compressed_position == "time" else 1
        slots = [(slot, t + len(memory) + width * (len(compressed) - j)) for j, slot in enumerate(compressed)]
        slots += [(slot, t + len(memory) - j) for j, slot in enumerate(memory)]
        slots += [(slot, t - j) for j, slot in enumerate(h[: t + 1])]
        own = [(slot, distance) for slot, distance in slots if slot.episode == h[t].episode]

        def sub_layer(x: Tensor, norm: Any, gate: Any, branch: Any) -> Tensor:
            y = branch(literal_norm(norm, x) if pre_norm else x)
            joined = literal_gate(gate, x, y.clamp(min=0)) if config.gate == "gru" else x + y
            return joined if pre_norm else literal_norm(norm, joined)

        def attend(query: Tensor) -> Tensor:
            keys = [
                (literal_norm(layer.attention_norm, slot.vector) if pre_norm else slot.vector, distance)
                for slot, distance in own
            ]
            attended, weights = literal_attention(layer, query, keys)
            for (slot, _), weight in zip(own, weights):
                slot.received += weight
                slot.queries += 1
            return attended

        def mlp(a: Tensor) -> Tensor:
            up, _, down = layer.mlp
            return down.weight @ (up.weight @ a + up.bias).clamp(min=0) + down.bias

        a = sub_layer(x, layer.attention_norm, layer.attention_gate, attend)
        return sub_layer(a, layer.mlp_norm, layer.mlp_gate, mlp)

    def remember(self, index: int, layer: Layer, h: list[Slot]) -> None:
        """Lines 8 to 11, and Algorithm 2: `now` is the episode that the next segment begins in."""
        config, sizes, now = self.config, layer.sizes, h[-1].episode
        both = self.memory[index] + h
        count = max(0, len(both) - sizes.memory)
        evicted, self.memory[index] = both[:count], both[count:]
        if not sizes.compressed:
            return
        if not evicted:
            self.losses[index].append([])
            return
        # Line 1: before anything was seen there were zeros.
        zero = torch.zeros(SIZE, dtype=torch.float64)
        evicted = [Slot(zero, None)] * (sizes.segment - count) + evicted
        evicted = [slot if slot.episode == now else Slot(zero, None) for slot in evicted]
        alive = [slot.episode == now for slot in evicted]
        slots = literal_compression(layer, config.compression, evicted, now)
        self.compressed[index] = (self.compressed[index] + slots)[-sizes.compressed :]
        old, new = [slot.vector for slot in evicted], [slot.vector for slot in slots]
        if config.compression_loss == "attention":
            loss = literal_loss(layer, config.norm == "pre", [slot.vector for slot in h], old, new)
            self.losses[index].append([loss] if any(alive) else [])
        if config.compression_loss == "autoencoding":
            decoded = literal_decoding(layer, new)
            errors = [((x - y) ** 2).sum() / SIZE for x, y in zip(decoded, old)]
            self.losses[index].append([error for error, present in zip(errors, alive) if present])


def literal_call(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> tuple[Tensor, dict, list[Literal]]:
    rows = [Literal(core) for _ in inputs]
    with torch.no_grad():
        features = torch.stack([row.run(x, begins) for row, x, begins in zip(rows, inputs, reset)])
        losses = {}
        for index in range(core.config.num_layers):
            segments = []
            for of_rows in zip(*(row.losses[index] for row in rows)):
                terms = [term for of_row in of_rows for term in of_row]
                segments.append(sum(terms) / len(terms) if terms else 0.0)
            if segments and core.config.compression_loss in ("attention", "autoencoding"):
                losses[f"compression/layer_{index}"] = sum(segments) / len(segments)
    return features, losses, rows


def check_against_literal(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> None:
    features, losses, rows = literal_call(core, inputs, reset)
    output = core(inputs, reset, core.initial_state(len(inputs)))
    assert_same(output.features.detach(), features)
    assert output.losses.keys() == losses.keys()
    for name, loss in losses.items():
        assert output.losses[name].item() == pytest.approx(float(loss), abs=1e-12)
    state = output.state
    final = reset.long().sum(dim=1)
    for row, literal in enumerate(rows):
        for index in range(core.config.num_layers):
            compressed_valid, memory_valid, _ = validity(core, state, index)
            for stored, valid, slots in (
                (state.memory[index], memory_valid, literal.memory[index]),
                (state.compressed[index], compressed_valid, literal.compressed[index]),
            ):
                alive = [slot.episode == int(final[row]) for slot in slots]
                assert valid[row].tolist() == [False] * (valid.shape[1] - len(alive)) + alive
                for slot, actual in zip(reversed(slots), reversed(stored[row])):
                    assert_same(actual, slot.vector)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_equals_algorithms_1_and_2(build, norm, gate, position, compression) -> None:
    core = build(config_of(norm=norm, gate=gate, compressed_position=position, compression=compression))
    check_against_literal(core, normal(1, 19, SIZE), resets(1, 19))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("loss", ["autoencoding", "bptt", "none"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_equals_the_literal_with_every_loss(build, norm, loss, compression) -> None:
    core = build(config_of(6, 5, 4, 3, norm=norm, compression_loss=loss, compression=compression))
    check_against_literal(core, normal(2, 20, SIZE), resets(2, 20, (1, 9)))


@pytest.mark.parametrize(
    ("n_s", "n_m", "n_cm", "c"),
    [(4, 4, 4, 4), (4, 3, 4, 2), (4, 1, 2, 1), (4, 0, 3, 2), (4, 6, 3, 4), (2, 5, 3, 2), (1, 2, 3, 1), (6, 2, 2, 3)],
)
@pytest.mark.parametrize("position", POSITIONS)
def test_equals_algorithm_1_at_any_size(build, n_s, n_m, n_cm, c, position) -> None:
    core = build(config_of(n_s, n_m, n_cm, c, compressed_position=position))
    check_against_literal(core, normal(1, 21, SIZE), resets(1, 21))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n_m", [0, 3, 7])
def test_equals_transformer_xl(build, n_m, norm) -> None:
    core = build(config_of(4, n_m, 0, 3, norm=norm))
    check_against_literal(core, normal(2, 18, SIZE), resets(2, 18, (1, 6)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_equals_algorithm_1_with_sizes_by_layer(build, compression) -> None:
    sizes = 4, (0, 5, 3), (3, 0, 4), (2, 3, 4)
    core = build(config_of(*sizes, num_layers=3, compression=compression, compressed_position="time"))
    check_against_literal(core, normal(2, 23, SIZE), resets(2, 23, (0, 10)))


@st.composite
def configs(draw: st.DrawFn) -> CompressiveTransformerConfig:
    n_s = draw(st.sampled_from([1, 2, 3, 4, 6]))
    rates = st.sampled_from([c for c in range(1, n_s + 1) if n_s % c == 0])
    n_m, n_cm, c = (draw(st.tuples(of, of)) for of in (st.integers(0, 6), st.integers(0, 4), rates))
    names = ("norm", NORMS), ("gate", GATES), ("compressed_position", POSITIONS), ("compression", tuple(COMPRESSIONS))
    names += (("compression_loss", ("attention", "autoencoding", "none")),)
    return config_of(n_s, n_m, n_cm, c, **{name: draw(st.sampled_from(values)) for name, values in names})


@settings(max_examples=30, deadline=None, derandomize=True)
@given(config=configs(), steps=st.integers(1, 20), data=st.data())
def test_equals_the_literal_with_resets(build, config, steps, data) -> None:
    places = st.tuples(st.integers(0, 1), st.integers(0, steps - 1))
    reset = resets(2, steps, *data.draw(st.sets(places, max_size=4)))
    check_against_literal(build(config), normal(2, steps, SIZE, seed=steps), reset)


# Memory, seen at layer 0, whose inputs are the core's.


def remembered(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> CompressiveState:
    with torch.no_grad():
        return core(inputs, reset, core.initial_state(len(inputs))).state


@pytest.mark.parametrize("n_m", [0, 1, 3, 4, 6, 9])
@pytest.mark.parametrize("n_cm", [1, 3, 20])
def test_the_oldest_steps_are_evicted_and_the_oldest_compressed_slots_dropped(build, n_m, n_cm) -> None:
    n_s, c, steps = 4, 2, 24
    core = build(config_of(n_s, n_m, n_cm, c, compression="mean"))
    inputs = normal(2, steps, SIZE)
    stream = torch.cat([torch.zeros(2, n_m, SIZE).double(), inputs], dim=1)
    evicted, memory = stream[:, :steps], stream[:, steps:]
    state = remembered(core, inputs, resets(2, steps))
    assert_same(state.memory[0], memory)
    compressed = torch.cat([torch.zeros(2, n_cm, SIZE).double(), evicted.unflatten(1, (-1, c)).mean(dim=2)], dim=1)
    assert_same(state.compressed[0], compressed[:, -n_cm:])
    seen = torch.arange(steps) >= n_m
    valid = torch.cat([torch.zeros(n_cm, dtype=torch.bool), seen.view(-1, c).any(dim=1)])
    compressed_valid, memory_valid, _ = validity(core, state)
    assert torch.equal(compressed_valid, valid[-n_cm:].expand(2, -1))
    assert torch.equal(memory_valid, torch.ones(2, n_m, dtype=torch.bool))


def test_members_of_a_group_that_precede_a_reset_are_zeroed(build) -> None:
    core = build(config_of(4, 0, 4, 4, compression="mean"))
    inputs = normal(2, 12, SIZE)
    state = remembered(core, inputs, resets(2, 12, (0, 6)))
    kept = inputs.clone()
    kept[0, 4:6] = 0
    groups = kept.unflatten(1, (3, 4)).mean(dim=2)
    assert_same(state.compressed[0][:, 1:], groups)
    assert validity(core, state)[0].tolist() == [[False, False, True, True], [False, True, True, True]]

    # What is evicted after the reset is zeroed, although it was remembered long before.
    core = build(config_of(4, 4, 4, 2, compression="mean"))
    state = remembered(core, inputs, resets(2, 12, (0, 7)))
    means = inputs.unflatten(1, (6, 2)).mean(dim=2)
    means[0, :3] = 0
    means[0, 3] = inputs[0, 7] / 2
    assert_same(state.compressed[0], means[:, :4])
    compressed_valid, memory_valid, _ = validity(core, state)
    assert compressed_valid.tolist() == [[False, False, False, True], [True, True, True, True]]
    assert memory_valid.all()


def test_a_reset_invalidates_what_was_compressed_before(build) -> None:
    core = build(config_of())
    inputs = normal(1, 17, SIZE)
    assert validity(core, remembered(core, inputs, resets(1, 17)))[0].all()
    compressed_valid, memory_valid, segment_valid = validity(core, remembered(core, inputs, resets(1, 17, (0, 16))))
    assert not compressed_valid.any()
    assert not memory_valid.any()
    assert segment_valid.tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("phase", [1, 2, 3, 7])
def test_where_in_a_segment_an_episode_begins_does_not_matter_before_it_is_compressed(
    build, norm, position, phase
) -> None:
    core = build(config_of(4, 9, 4, 2, norm=norm, compressed_position=position))
    episode, before = normal(1, 9, SIZE), normal(1, phase, SIZE, seed=1)
    fresh = core(episode, resets(1, 9), core.initial_state(1)).features
    later = core(torch.cat([before, episode], dim=1), resets(1, 9 + phase, (0, phase)), core.initial_state(1)).features
    assert_same(later[:, phase:], fresh)


@pytest.mark.parametrize(("n_m", "n_cm"), [(0, 1), (2, 9), (11, 2)])
def test_memory_sizes_can_change_without_retraining(build, n_m, n_cm) -> None:
    trained = build(config_of())
    core = build(config_of(n_m=n_m, n_cm=n_cm), seed=1)
    core.load_state_dict(trained.state_dict(), strict=True)
    check_against_literal(core, normal(1, 18, SIZE), resets(1, 18))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("n_m", "n_cm"), [(0, 1), (11, (2, 0)), ((3, 5), None), (None, (9, 0))])
def test_resized_equals_a_core_built_with_these_sizes(build, n_m, n_cm, compression, position) -> None:
    before = config_of(4, 4, (4, 0), compression=compression, compressed_position=position)
    if n_cm == 1:
        before = config_of(4, 4, 4, compression=compression, compressed_position=position)
    trained = build(before).train()
    random = torch.get_rng_state()
    core = trained.resized(n_m, n_cm)
    assert torch.equal(torch.get_rng_state(), random)
    assert core.training
    changes = {"memory_size": n_m, "compressed_size": n_cm}
    config = dataclasses.replace(before, **{name: size for name, size in changes.items() if size is not None})
    built = build(config, seed=1)
    built.load_state_dict(trained.state_dict(), strict=True)
    assert core.config == built.config
    inputs, reset = normal(2, 30, SIZE), resets(2, 30, (1, 13))
    actual, expected = (c.eval()(inputs, reset, c.initial_state(2)) for c in (core, built))
    assert_same(actual.features, expected.features, 0)
    assert actual.losses == expected.losses
    # It shares nothing with the core that it came from.
    for parameter in core.parameters():
        parameter.data.zero_()
    assert all(parameter.any() for parameter in trained.parameters())
    assert trained.config == before
    check_against_literal(trained.eval(), inputs[:1, :9], reset[:1, :9])


def test_resized_neither_gains_nor_loses_compression(build) -> None:
    core = build(config_of(n_cm=(4, 0)))
    for size in (0, 4, (0, 4), (0, 0)):
        with pytest.raises(ValueError, match="compressed_size: expected 0 exactly where it was 0 before"):
            core.resized(compressed_size=size)
    with pytest.raises(ValueError, match=r"memory_size: expected one number or 2 \(num_layers\), got \(1, 2, 3\)"):
        core.resized(memory_size=(1, 2, 3))


# Where a slot came from: all inputs differ, so layer 0's slots tell which steps they are made of.


@pytest.mark.parametrize("n_m", [0, 1, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_are_those_of_the_steps_in_the_slots(build, n_m, c) -> None:
    core = build(config_of(4, (n_m, 2), (5, 3), (c, 4), compression="mean"))
    inputs, traced = normal(1, 40, SIZE), 0
    for t in range(40):
        state, phase = remembered(core, inputs[:, :t], resets(1, t)) if t else core.initial_state(1), t % 4
        ages = core.slot_ages(0, phase)
        slots = torch.cat([state.compressed[0], state.memory[0], state.segment[0]], dim=1)[0]
        slots[5 + n_m + phase] = inputs[0, t]
        assert ages.shape == (len(slots), 2)
        valid = torch.cat(validity(core, state), dim=1)[0]
        valid[5 + n_m + phase] = True
        for slot, (oldest, newest), present in zip(slots, ages.tolist(), valid.tolist()):
            assert present == (0 <= newest <= t)
            if oldest <= t and newest >= 0:
                assert_same(slot, inputs[0, t - oldest : t - newest + 1].mean(dim=0))
                traced += 1
    assert traced > 200
    assert core.slot_ages(1, 2).shape == (3 + 2 + 4, 2)


@pytest.mark.parametrize("n_m", [0, 3, 6])
@pytest.mark.parametrize("c", [1, 2, 4])
def test_slot_ages_with_most_used_compression_are_those_of_the_state(build, n_m, c) -> None:
    core = build(config_of(4, n_m, 5, c, compression="most-used"))
    inputs, sources = normal(2, 40, SIZE), set()
    for t in range(4, 40):
        begin, phase = t - t % 4, t % 4
        before = remembered(core, inputs[:, :begin], resets(2, begin))
        ages, spans = core.slot_ages(0, phase, before), core.slot_ages(0, phase)
        assert ages.shape == (2, 5 + n_m + 4, 2)
        assert spans.shape == (5 + n_m + 4, 2)
        assert torch.equal(ages[..., 0], ages[..., 1])
        assert (ages[..., 0] <= spans[:, 0]).all()
        assert (ages[..., 1] >= spans[:, 1]).all()
        slots = torch.cat([before.compressed[0], before.memory[0], inputs[:, begin : begin + 4]], dim=1)
        valid = torch.cat(validity(core, before), dim=1)
        valid[:, 5 + n_m :] = True
        for row in range(2):
            for slot, (age, _), present in zip(slots[row], ages[row].tolist(), valid[row].tolist()):
                if present:
                    assert_same(slot, inputs[row, t - age], 0)
        sources |= set(before.source[0][valid[:, :5]].tolist())
    assert c == 1 or len(sources) > 4 // c  # or it would always have kept the same


def test_slot_ages_survive_taking_rows(build) -> None:
    core = build(config_of(compression="most-used"))
    state = remembered(core, normal(3, 24, SIZE), resets(3, 24))
    assert torch.equal(core.slot_ages(1, 0, index_state(state, [2])), core.slot_ages(1, 0, state)[[2]])


# Who trains what.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_loss_trains_its_own_parameters_and_nothing_else(build, norm, gate, loss, compression) -> None:
    core = build(config_of(norm=norm, gate=gate, compression=compression, compression_loss=loss)).train()
    inputs = normal(2, 24, SIZE).requires_grad_()
    mine = {id(parameter) for parameter in core.compression_parameters()}
    assert bool(mine) == (compression in TRAINED or loss == "autoencoding")

    output = core(inputs, resets(2, 24, (0, 9)), core.initial_state(2))
    assert len(output.losses) == 2
    total = sum(output.losses.values())
    assert total > 0
    if mine:
        total.backward(retain_graph=True)
        for name, parameter in core.named_parameters():
            if id(parameter) in mine:
                assert parameter.grad.abs().sum() > 0, name
            else:
                assert parameter.grad is None, name
    else:
        assert not total.requires_grad
    assert inputs.grad is None

    core.zero_grad(set_to_none=True)
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in mine), name
    assert inputs.grad.abs().sum() > 0


def test_what_is_compressed_matters_to_the_features(build) -> None:
    """Or the test above would say nothing."""
    core, inputs = build(config_of()), normal(1, 24, SIZE)
    features = core(inputs, resets(1, 24), core.initial_state(1)).features
    for parameter in core.compression_parameters():
        parameter.data += 0.1
    changed = core(inputs, resets(1, 24), core.initial_state(1)).features
    assert_same(changed[:, :8], features[:, :8])
    assert (changed[:, 8:] - features[:, 8:]).abs().amin(dim=(0, 2)).min() > 1e-6


def test_gradients_flow_through_memory_and_stop_at_compression(build) -> None:
    core = build(config_of(4, 4, 4, 2, num_layers=1))
    inputs = normal(1, 12, SIZE).requires_grad_()
    features = core(inputs, resets(1, 12), core.initial_state(1)).features
    features[0, 11].square().sum().backward()
    reached = inputs.grad.abs().sum(dim=2)[0]
    assert not reached[:4].any()  # compressed when step 11 sees them
    assert reached[4:8].all()  # memory
    assert reached[8:].all()  # segment


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_with_bptt_the_task_trains_everything(build, norm, gate, compression) -> None:
    core = build(config_of(norm=norm, gate=gate, compression=compression, compression_loss="bptt")).train()
    assert core.compression_parameters() == []
    output = core(normal(2, 24, SIZE), resets(2, 24, (0, 9)), core.initial_state(2))
    assert output.losses == {}
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    names = {name for name, _ in core.named_parameters() if ".compression." in name}
    assert bool(names) == (compression in TRAINED)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_gradients_of_bptt_are_those_of_the_literal(build, norm, compression) -> None:
    core = build(config_of(4, 2, 3, 2, norm=norm, compression=compression, compression_loss="bptt"))
    inputs, reset = normal(1, 14, SIZE).requires_grad_(), resets(1, 14, (0, 5))
    wanted = [inputs, *core.parameters()]
    features = core(inputs, reset, core.initial_state(1)).features
    literal = Literal(core).run(inputs[0], reset[0])[None]
    of_core, of_literal = (torch.autograd.grad(part.square().sum(), wanted) for part in (features, literal))
    for actual, expected in zip(of_core, of_literal):
        assert_same(actual, expected, 1e-9)


def test_gradients_flow_through_compression_with_bptt(build) -> None:
    core = build(config_of(4, 4, 4, 2, num_layers=1, compression_loss="bptt"))
    inputs = normal(1, 12, SIZE).requires_grad_()
    features = core(inputs, resets(1, 12), core.initial_state(1)).features
    features[0, 11].square().sum().backward()
    assert inputs.grad.abs().sum(dim=2)[0].all()


@pytest.mark.parametrize(
    ("loss", "compression", "share"),
    [("autoencoding", "convolution", 0.8), ("autoencoding", "dilated", 0.8), ("attention", "convolution", 0.5)],
)
def test_the_compression_learns_to_reconstruct(build, loss, compression, share) -> None:
    core = build(config_of(compression=compression, compression_loss=loss)).train()
    optimiser = torch.optim.Adam(core.compression_parameters(), lr=1e-2)
    inputs, history = normal(4, 32, SIZE), []
    for _ in range(40):
        loss = sum(core(inputs, resets(4, 32), core.initial_state(4)).losses.values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(loss.item())
    assert history[-1] < share * history[0]


def test_losses_are_means_over_the_segments_of_a_call(build) -> None:
    core, inputs, reset = build(config_of()), normal(2, 16, SIZE), resets(2, 16, (1, 5))
    whole = core(inputs, reset, core.initial_state(2)).losses
    state, parts = core.initial_state(2), []
    for begin in range(0, 16, 2):
        output = core(inputs[:, begin : begin + 2], reset[:, begin : begin + 2], state)
        state = output.state
        assert bool(output.losses) == (begin % 4 == 2)
        parts += [output.losses] if output.losses else []
    for name, loss in whole.items():
        assert_same(torch.stack([part[name] for part in parts]).mean(), loss)
    assert not parts[0]["compression/layer_0"]  # nothing evicted


# Attention.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("cached", [False, True])
def test_attention_that_is_returned_is_the_attention_that_is_used(build, norm, position, cached) -> None:
    core = build(config_of(4, 6, 3, 2, norm=norm, compressed_position=position))
    inputs, reset = normal(2, 30, SIZE), resets(2, 30, (0, 13), (1, 22))
    state = core.initial_state(2)
    with torch.no_grad():
        begin = core.with_cache(state) if cached else state
        fast, shown = core(inputs, reset, state), core(inputs, reset, begin, return_attention=True)
    assert fast.attention is None
    assert_same(shown.features, fast.features)
    for actual, expected in zip(shown.state[0] + shown.state[1] + shown.state[2], sum(fast.state[:3], ())):
        assert_same(actual, expected)
    assert len(shown.attention) == 2
    for weights in shown.attention:
        assert weights.shape == (2, HEADS, 30, 3 + 6 + 4)
        assert_same(weights.sum(dim=-1), torch.ones(2, HEADS, 30).double())


def test_attention_is_zero_exactly_where_a_slot_is_invalid(build) -> None:
    core = build(config_of(4, 6, 3, 2))
    inputs, reset = normal(2, 40, SIZE), resets(2, 40, (0, 13), (1, 22), (1, 23))
    whole = core(inputs, reset, core.initial_state(2), return_attention=True).attention
    state = core.initial_state(2)
    for t in range(40):
        begins = reset[:, t, None]
        valid = torch.cat(validity(core, state), dim=1) & ~begins
        valid[:, 3 + 6 + state.phase] = True
        output = core(inputs[:, t : t + 1], reset[:, t : t + 1], state, return_attention=True)
        for weights, of_whole in zip(output.attention, whole):
            assert torch.equal(weights[:, :, 0] > 0, valid[:, None].expand(-1, HEADS, -1))
            assert_same(of_whole[:, :, t], weights[:, :, 0])
        state = output.state
    assert torch.cat(validity(core, state)[:2], dim=1).all()


def test_attention_by_kind_is_the_mass_on_each_kind(build) -> None:
    core = build(config_of(4, (6, 1), (3, 4), 2))
    output = core(normal(2, 30, SIZE), resets(2, 30, (0, 13)), core.initial_state(2), return_attention=True)
    assert [weights.shape for weights in output.attention] == [(2, HEADS, 30, 13), (2, HEADS, 30, 9)]
    kinds = core.attention_by_kind(output.attention)
    assert kinds.shape == (2, 2, HEADS, 30, 3)
    for of_layer, weights, (n_m, n_cm) in zip(kinds, output.attention, ((6, 3), (1, 4))):
        for kind, part in enumerate((slice(0, n_cm), slice(n_cm, n_cm + n_m), slice(n_cm + n_m, None))):
            assert_same(of_layer[..., kind], weights[..., part].sum(dim=-1))
    assert_same(kinds.sum(dim=-1), torch.ones(2, 2, HEADS, 30).double())
    assert not kinds[:, 0, :, 13, :2].any()


def test_attention_by_kind_of_a_core_that_attends_to_all_slots_alike(build) -> None:
    core = build(config_of(2, 2, 1, 2))
    for layer in core.layers:  # no query: every score is 0
        for parameter in (layer.attention.query.weight, layer.attention.content_bias, layer.attention.position_bias):
            torch.nn.init.zeros_(parameter)
    output = core(normal(1, 12, SIZE), resets(1, 12, (0, 7)), core.initial_state(1), return_attention=True)
    kinds = core.attention_by_kind(output.attention)
    slots = [(0, 0, 1), (0, 0, 2), (0, 2, 1), (0, 2, 2), (1, 2, 1), (1, 2, 2), (1, 2, 1)]  # the reset comes at step 7
    slots += [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 2, 1), (1, 2, 2)]  # its segment began a step before it
    expected = torch.tensor(slots).double() / torch.tensor(slots).sum(dim=1, keepdim=True)
    assert_same(kinds, expected.expand(2, 1, HEADS, 12, 3))
    for t in range(12):
        newest = core.slot_ages(0, t % 2)[:, 1]
        seen = (newest >= 0) & (newest <= (t if t < 7 else t - 7))
        assert tuple(part.sum() for part in seen.split([1, 2, 2])) == slots[t]


@pytest.mark.parametrize(("queries", "slots"), [(1, 1), (1, 6), (2, 2), (2, 5), (4, 4), (4, 9)])
def test_relative_shift_aligns_distances_with_keys(queries, slots) -> None:
    scores = normal(2, 3, queries, slots)
    shifted = relative_shift(scores)
    assert shifted.shape == scores.shape
    for t in range(queries):
        for s in range(slots - queries + t + 1):
            distance = (slots - queries + t) - s
            assert torch.equal(shifted[..., t, s], scores[..., t, slots - 1 - distance])


@pytest.mark.parametrize("size", [2, 6, 8])
def test_sinusoids_are_those_of_transformer_xl(size) -> None:
    distances = [0, 1, 7, 1500]
    table = sinusoids(torch.tensor(distances), size)
    assert table.shape == (4, size)
    for row, distance in zip(table, distances):
        for k in range(size // 2):
            angle = distance / 10000 ** (2 * k / size)
            assert float(row[k]) == pytest.approx(math.sin(angle), abs=1e-12)
            assert float(row[size // 2 + k]) == pytest.approx(math.cos(angle), abs=1e-12)


def test_states_with_a_cache_share_tensors_and_yet_each_may_go_on_more_than_once(build) -> None:
    """Their segments are written in place by the newest of them; every other line of states copies first."""
    core, reset = build(config_of()), resets(3, 12)
    inputs, others = normal(3, 12, SIZE), normal(3, 12, SIZE) + 1
    begin = remembered(core, inputs, reset)

    def steps(state, source, first, last):
        for t in range(first, last):
            state = core(source[:, t : t + 1], reset[:, t : t + 1], state).state
        return state

    def same(cached, *parts, rows=slice(None)):
        expected = index_state(begin, rows)
        for source, first, last in parts:
            expected = core(source[rows, first:last], reset[rows, first:last], expected).state
        for actual, wanted in zip(leaves(core.without_cache(cached)), leaves(expected), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-12)

    with torch.no_grad():
        first = steps(core.with_cache(begin), inputs, 0, 1)
        second = steps(first, inputs, 1, 2)
        assert second.segment[0] is first.segment[0], "not copied"
        branch = steps(first, others, 1, 3)
        assert branch.segment[0] is not first.segment[0]
        part = index_state(second, slice(0, 2))
        for t in range(2, 6):  # both at once, over the turn of the segment
            second, branch = steps(second, inputs, t, t + 1), steps(branch, others, t + 1, t + 2)
        part = core(others[:2, 2:3], reset[:2, 2:3], part).state
        same(first, (inputs, 0, 1))
        same(second, (inputs, 0, 6))
        same(branch, (inputs, 0, 1), (others, 1, 7))
        same(part, (inputs, 0, 2), (others, 2, 3), rows=slice(0, 2))
    learned = core(inputs[:, 1:3], reset[:, 1:3], first)
    assert learned.state.segment[0] is not first.segment[0], "learning never writes into what it was given"


def test_a_cache_means_that_only_new_steps_are_projected(build) -> None:
    core, inputs, reset = build(config_of()), normal(1, 12, SIZE), resets(1, 12)
    projected, attention = [], core.layers[0].attention
    project = attention.project
    attention.project = lambda slots, *norm: (projected.append(slots.shape[1]), project(slots, *norm))[1]
    with torch.no_grad():
        state = core.with_cache(remembered(core, inputs, reset))
        for t in range(8):
            projected.clear()
            state = core(inputs[:, t : t + 1], reset[:, t : t + 1], state).state
            # When a full segment enters memory, only the newly compressed slots are new.
            assert projected == ([1] if t % 4 != 3 else [1, 2])
        projected.clear()
        core(inputs, reset, core.without_cache(state))
        # All that came in, and each segment with what was compressed before it; what the last one leaves is not needed.
        assert projected == [8, 4, 2, 4, 2, 4]


SHAPES = pytest.mark.parametrize(
    ("n_s", "n_m", "n_cm", "c", "position"), [(4, 6, 3, 2, "slot"), (6, 2, 4, 3, "time"), (4, 5, 0, 1, "slot")]
)


@SHAPES
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_the_same(build, n_s, n_m, n_cm, c, position) -> None:
    config = config_of(n_s, n_m, n_cm, c, compressed_position=position)
    core, flex = build(config), build(dataclasses.replace(config, attention="flex"))
    inputs, reset = normal(2, 30, SIZE), resets(2, 30, (0, 13), (1, 22))
    with torch.no_grad():
        expected, actual = (model(inputs, reset, model.initial_state(2)) for model in (core, flex))
    assert_same(actual.features, expected.features)
    assert_same(actual.state.compressed[-1], expected.state.compressed[-1])
    flex.float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = flex(inputs.float(), reset, flex.initial_state(2))
    assert_same(mixed.features.double(), expected.features, 0.2)


@SHAPES
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_flex_attention_learns_the_same_when_compiled(build, n_s, n_m, n_cm, c, position) -> None:
    config = config_of(n_s, n_m, n_cm, c, compressed_position=position, model_size=32)  # kernels want 16 or more a head
    inputs, reset = normal(2, 30, 32).float().cuda(), resets(2, 30, (0, 13), (1, 22)).cuda()
    results = []
    for attention in ("sdpa", "flex"):
        core = build(dataclasses.replace(config, attention=attention), torch.float32).cuda()
        model = torch.compile(core, fullgraph=True) if attention == "flex" else core
        output = model(inputs, reset, core.initial_state(2))
        output.features.square().mean().backward()
        grads = [p.grad.flatten() for p in core.parameters() if p.grad is not None]
        results.append(torch.cat([output.features.detach().flatten(), *grads]))
    assert_same(*results, 1e-3)


# Precision.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("cached", [False, True])
def test_runs_in_mixed_precision(build, norm, gate, cached) -> None:
    core = build(config_of(norm=norm, gate=gate, compressed_position="time"), torch.float32)
    inputs, reset, state = normal(2, 24, SIZE).float(), resets(2, 24, (0, 9)), core.initial_state(2)
    expected = core(inputs, reset, state).features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = core(inputs, reset, core.with_cache(state) if cached else state)
    (output.features.float().square().mean() + sum(output.losses.values())).backward()
    assert_same(output.features.float(), expected, 0.2)
    assert {leaf.dtype for leaf in sum(output.state[:3], ())} == {torch.float32}


@pytest.mark.parametrize("cached", [False, True])
def test_usage_is_kept_in_full_precision(build, cached) -> None:
    core = build(config_of(compression="most-used"), torch.float32)
    state = core.with_cache(core.initial_state(2)) if cached else core.initial_state(2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        output = core(normal(2, 22, SIZE).float(), resets(2, 22, (0, 9)), state)
    assert output.features.isfinite().all()
    assert {leaf.dtype for leaf in output.state.usage} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_gpu_gives_the_same(build, norm, position) -> None:
    core = build(config_of(5, 7, 3, 5, model_size=16, norm=norm, gate="gru", compressed_position=position))
    inputs, reset = normal(3, 33, 16), resets(3, 33, (0, 13), (2, 22))

    def run(device: str, dtype: torch.dtype) -> Tensor:
        core.to(device, dtype).zero_grad()
        output = core(inputs.to(device, dtype), reset.to(device), core.initial_state(3))
        (output.features.square().mean() + sum(output.losses.values())).backward()
        grads = [parameter.grad.flatten() for parameter in core.parameters()]
        return torch.cat([output.features.detach().flatten(), *grads]).double().cpu()

    expected = run("cpu", torch.float64)
    assert_same(run("cuda", torch.float64), expected, 1e-6)
    assert_same(run("cuda", torch.float32), expected, 1e-3)


# Configs.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"c": 3}, "compression_rate: expected a divisor of segment_size = 4, got 3"),
        ({"model_size": 5}, "model_size: expected a multiple of num_heads = 2, got 5"),
        ({"model_size": 5, "num_heads": 1}, "model_size: expected an even number .*, got 5"),
        ({"num_layers": 0}, "num_layers: expected a positive integer, got 0"),
        ({"mlp_size": 1.5}, "mlp_size: expected a positive integer, got 1.5"),
        ({"n_s": True}, "segment_size: expected a positive integer, got True"),
        ({"n_m": -1}, "memory_size: expected 0 or more, got -1"),
        ({"n_cm": -2}, "compressed_size: expected 0 or more, got -2"),
        ({"compression": "most"}, "compression: expected one of convolution, .*mean.*, got 'most'"),
        ({"compression_loss": "l2"}, "compression_loss: expected one of attention, .*none, got 'l2'"),
        ({"norm": "rms"}, "norm: expected one of pre, post, got 'rms'"),
        ({"gate": "lstm"}, "gate: expected one of residual, gru, got 'lstm'"),
        ({"compressed_position": "far"}, "compressed_position: expected one of slot, time, got 'far'"),
        ({"attention": "flash"}, "attention: expected one of sdpa, flex, got 'flash'"),
        ({"attention": "flex", "compression": "most-used"}, "attention: expected sdpa with most-used .*, got 'flex'"),
        ({"dropout": 1.0}, "dropout: expected 0 <= dropout < 1, got 1.0"),
        ({"n_m": (1, 2, 3)}, r"memory_size: expected one number or 2 \(num_layers\), got \(1, 2, 3\)"),
        ({"n_cm": (4, -1)}, r"compressed_size: expected 0 or more, got \(4, -1\)"),
        ({"c": (2, 0)}, r"compression_rate: expected 1 or more, got \(2, 0\)"),
        ({"c": (2, 3)}, "compression_rate: expected a divisor of segment_size = 4, got 3"),
    ],
)
def test_config_errors_name_the_field(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(**fields)


def test_a_rate_that_is_not_used_may_be_anything() -> None:
    assert config_of(4, 4, 0, 3).compressed_size == 0


def test_transformer_xl_has_no_compressed_memory() -> None:
    with pytest.raises(ValueError, match="compressed_size: expected 0 for Transformer-XL, got 4"):
        TransformerXLConfig(compressed_size=4)
    assert TransformerXLConfig(2, 2, 1, compressed_size=(0, 0)).layer_sizes[1].compressed == 0


def test_gated_transformer_xl_is_transformer_xl_with_norms_at_the_input_and_gates(build) -> None:
    sizes = {"model_size": SIZE, "num_layers": 2, "num_heads": HEADS, "mlp_size": 6, "segment_size": 4}
    gated = build(GatedTransformerXLConfig(**sizes, memory_size=5))
    check_against_literal(gated, normal(2, 18, SIZE), resets(2, 18, (1, 6)))
    inputs, reset = normal(2, 18, SIZE), resets(2, 18, (1, 6))
    same = build(TransformerXLConfig(**sizes, memory_size=5, norm="pre", gate="gru"))
    expected = same(inputs, reset, same.initial_state(2)).features
    assert_same(gated(inputs, reset, gated.initial_state(2)).features, expected, 0)
    with pytest.raises(ValueError, match="gate: expected gru for gated Transformer-XL, got 'residual'"):
        GatedTransformerXLConfig(gate="residual")


def test_dropout_acts_while_training_only(build) -> None:
    core, inputs, reset = build(config_of(dropout=0.5)), normal(1, 6, SIZE), resets(1, 6)

    def features() -> Tensor:
        return core(inputs, reset, core.initial_state(1)).features

    assert torch.equal(features(), features())
    core.train()
    assert not torch.equal(features(), features())


def test_a_convolution_is_the_convolution_of_torch(build) -> None:
    core, slots = build(config_of(c=2)), normal(3, 8, SIZE)
    group = core.layers[0].compression.group
    kernel = group.weight.unflatten(1, (2, SIZE)).transpose(1, 2)
    expected = F.conv1d(slots.transpose(1, 2), kernel, group.bias, stride=2).transpose(1, 2)
    assert_same(core.layers[0].compression(slots), expected)
