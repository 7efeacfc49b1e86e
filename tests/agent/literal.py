"""The Compressive Transformer of the paper, transcribed slowly: one query, one head and one slot at a time.

`Literal` is Algorithm 1 with Transformer-XL's relative attention and `literal_loss` is Algorithm 2 (Rae et al. 2020).
They know no masks, no batches and no fixed shapes: memories are python lists that grow, each member remembers its
episode and the attention that it got, and what is of another episode is left out of the sum.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import CompressiveTransformer
from agent.core.compressive_transformer import Layer
from tests.agent.tiny import HEADS, SIZE, assert_same, validity


@dataclass(eq=False)
class Slot:
    """A layer input [D], its episode (None: nothing valid went into it), and its use so far.

    `received` is the attention, the mean over heads, summed over the `queries` that could attend to it.
    """

    vector: Tensor
    episode: int | None
    received: float = 0.0
    queries: int = 0

    @property
    def usage(self) -> float:
        return self.received / self.queries


def literal_norm(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def literal_gate(gate: Any, x: Tensor, y: Tensor) -> Tensor:
    """Parisotto et al. 2019, section 3.2: the gated recurrent unit."""
    w_r, w_z, w_g = gate.branch.weight.chunk(3)
    u_r, u_z = gate.stream.weight.chunk(2)
    r = torch.sigmoid(w_r @ y + u_r @ x)
    z = torch.sigmoid(w_z @ y + u_z @ x - gate.bias)
    h = torch.tanh(w_g @ y + gate.candidate.weight @ (r * x))
    return (1 - z) * x + z * h


@functools.cache
def literal_encoding(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * k / SIZE) for k in range(SIZE // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def head_slice(head: int) -> slice:
    """The features of a head."""
    size = SIZE // HEADS
    return slice(head * size, (head + 1) * size)


def literal_attention(layer: Layer, query: Tensor, slots: list[tuple[Tensor, int]]) -> tuple[Tensor, list[float]]:
    """Dai et al. 2019, section 3.3, of one query over (slot, distance), and each slot's mean weight over heads:

    A_ij = q_i k_j + q_i W_R R_(i-j) + u k_j + v W_R R_(i-j), its softmax over j weighs the values.
    """
    attention = layer.attention
    w_k, w_v = attention.key_value.weight.chunk(2)
    keys = [w_k @ slot for slot, _ in slots]
    values = [w_v @ slot for slot, _ in slots]
    positions = [attention.position.weight @ literal_encoding(distance) for _, distance in slots]

    outputs = []
    mean_weights = [0.0] * len(slots)
    for head in range(HEADS):
        part = head_slice(head)
        q = (attention.query.weight @ query)[part]
        u = attention.content_bias[head, 0]
        v = attention.position_bias[head, 0]
        exponentials = []
        for key, position in zip(keys, positions):
            k = key[part]
            r = position[part]
            score = (q @ k + q @ r + u @ k + v @ r) / math.sqrt(SIZE // HEADS)
            exponentials.append(score.exp())

        total = sum(exponentials)
        output = 0
        for slot, exponential in enumerate(exponentials):
            weight = exponential / total
            output = output + weight * values[slot][part]
            mean_weights[slot] += float(weight.detach()) / HEADS
        outputs.append(output)
    return attention.output.weight @ torch.cat(outputs), mean_weights


def literal_group(layer: Layer, kind: str, group: list[Tensor]) -> Tensor:
    """One compressed slot from c old ones."""
    if kind == "mean":
        return sum(group) / len(group)  # type: ignore[return-value]
    if kind == "max":
        return torch.stack(group).amax(dim=0)
    # A convolution with kernel and stride c: one matrix for each place in the group.
    kernel = layer.compression.group
    new: Tensor = kernel.bias
    for place, x in enumerate(group):
        matrix = kernel.weight[:, place * SIZE : (place + 1) * SIZE]
        new = new + matrix @ x
    return new


def literal_dilation(layer: Layer, old: list[Tensor]) -> list[Tensor]:
    """Two convolutions of width 3 over all that is evicted, zeros beyond it; ReLU and residual sum after each."""
    for convolution, dilation in zip(layer.compression.dilated, (1, 2)):
        new = []
        for place, x in enumerate(old):
            y = convolution.bias
            for k, neighbor in enumerate((place - dilation, place, place + dilation)):
                if 0 <= neighbor < len(old):
                    y = y + convolution.weight[:, :, k] @ old[neighbor]
            new.append(x + y.clamp(min=0))
        old = new
    return old


def literal_compression(layer: Layer, kind: str, evicted: list[Slot], now: int) -> list[Slot]:
    """Section 3.2: from n_s slots, those that are not of this episode zeroed, to n_s / c."""
    c = layer.sizes.rate
    if kind == "most-used":
        return literal_most_used(evicted, len(evicted) // c, now)
    vectors = [slot.vector for slot in evicted]
    if kind == "dilated":
        vectors = literal_dilation(layer, vectors)
    new = []
    for begin in range(0, len(evicted), c):
        alive = any(slot.episode == now for slot in evicted[begin : begin + c])
        episode = now if alive else None
        new.append(Slot(literal_group(layer, kind, vectors[begin : begin + c]), episode))
    return new


def literal_most_used(evicted: list[Slot], count: int, now: int) -> list[Slot]:
    """Of this episode the most used slots; of equals, and where there are too few, the newest. In their old order."""
    ranks = []
    for place, slot in enumerate(evicted):
        usage = slot.usage if slot.episode == now else -1.0
        ranks.append((usage, place))
    ranks.sort(reverse=True)
    kept = sorted(place for _, place in ranks[:count])
    return [Slot(evicted[place].vector, evicted[place].episode) for place in kept]


def literal_decoding(layer: Layer, new: list[Tensor]) -> list[Tensor]:
    """The mirror of the convolution: one matrix for each place in the group."""
    decoder = layer.decoder
    decoded = []
    for x in new:
        for place in range(layer.sizes.rate):
            part = slice(place * SIZE, (place + 1) * SIZE)
            decoded.append(decoder.weight[part] @ x + decoder.bias[part])
    return decoded


def literal_loss(layer: Layer, pre_norm: bool, h: list[Tensor], old: list[Tensor], new: list[Tensor]) -> Tensor:
    """Algorithm 2 of one layer: content-based attention over old memories and over compressed ones, compared."""
    w_q = layer.attention.query.weight
    w_k, w_v = layer.attention.key_value.weight.chunk(2)

    def normed(xs: list[Tensor]) -> list[Tensor]:
        return [literal_norm(layer.attention_norm, x) for x in xs] if pre_norm else xs

    def attend(query: Tensor, slots: list[Tensor]) -> Tensor:
        outputs = []
        for head in range(HEADS):
            part = head_slice(head)
            scores = [(w_q @ query)[part] @ (w_k @ slot)[part] / math.sqrt(SIZE // HEADS) for slot in slots]
            weights = torch.stack(scores).softmax(dim=0)
            outputs.append(sum(weight * (w_v @ slot)[part] for weight, slot in zip(weights, slots)))
        return torch.cat(outputs)

    total = torch.zeros((), dtype=torch.float64)
    for query in normed(h):
        difference = attend(query, normed(old)) - attend(query, normed(new))
        total = total + (difference**2).sum()
    return total / (len(h) * SIZE)


class Literal:
    """Algorithm 1 for one row.

    `losses[layer]` has an entry a full segment, a list of the terms that the loss is the mean of: one (attention), one
    for every valid memory (auto-encoding), none where nothing valid was evicted.
    """

    def __init__(self, core: CompressiveTransformer) -> None:
        self.core = core
        self.config = core.config
        self.pre_norm = core.config.norm == "pre"
        self.memory: list[list[Slot]] = [[] for _ in core.layers]
        self.compressed: list[list[Slot]] = [[] for _ in core.layers]
        self.losses: list[list[list[Tensor]]] = [[] for _ in core.layers]

    def run(self, inputs: Tensor, reset: Tensor) -> Tensor:
        """Features [T, D] of inputs [T, D]."""
        episodes = list(itertools.accumulate(int(begins) for begins in reset))
        slots = [Slot(x, episode) for x, episode in zip(inputs, episodes)]
        n_s = self.config.segment_size
        features = []
        for begin in range(0, len(inputs), n_s):
            h = slots[begin : begin + n_s]
            for index, layer in enumerate(self.core.layers):
                outputs = [self.step(index, layer, h, t) for t in range(len(h))]
                if len(h) == n_s:
                    self.remember(index, layer, h)
                h = [Slot(output, slot.episode) for slot, output in zip(h, outputs)]
            features += [slot.vector for slot in h]
        if self.pre_norm:
            features = [literal_norm(self.core.final_norm, x) for x in features]
        return torch.stack(features)

    def visible(self, index: int, layer: Layer, h: list[Slot], t: int) -> list[tuple[Slot, int]]:
        """The slots that step t of a segment may attend to, those of its episode, with their distances in steps."""
        memory = self.memory[index]
        compressed = self.compressed[index]
        width = layer.sizes.rate if self.config.compressed_position == "time" else 1
        placed = []
        for place, slot in enumerate(compressed):
            placed.append((slot, t + len(memory) + width * (len(compressed) - place)))
        for place, slot in enumerate(memory):
            placed.append((slot, t + len(memory) - place))
        for place, slot in enumerate(h[: t + 1]):
            placed.append((slot, t - place))
        return [(slot, distance) for slot, distance in placed if slot.episode == h[t].episode]

    def step(self, index: int, layer: Layer, h: list[Slot], t: int) -> Tensor:
        """Lines 5, 6, 7 and 12 for one step."""

        def sub_layer(x: Tensor, norm: Any, gate: Any, branch: Any) -> Tensor:
            y = branch(literal_norm(norm, x) if self.pre_norm else x)
            joined = literal_gate(gate, x, y.clamp(min=0)) if self.config.gate == "gru" else x + y
            return joined if self.pre_norm else literal_norm(norm, joined)

        def attend(query: Tensor) -> Tensor:
            slots = self.visible(index, layer, h, t)
            vectors = []
            for slot, distance in slots:
                vector = literal_norm(layer.attention_norm, slot.vector) if self.pre_norm else slot.vector
                vectors.append((vector, distance))
            attended, weights = literal_attention(layer, query, vectors)
            for (slot, _), weight in zip(slots, weights):
                slot.received += weight
                slot.queries += 1
            return attended

        def mlp(a: Tensor) -> Tensor:
            up, _, down = layer.mlp
            return down.weight @ (up.weight @ a + up.bias).clamp(min=0) + down.bias

        a = sub_layer(h[t].vector, layer.attention_norm, layer.attention_gate, attend)
        return sub_layer(a, layer.mlp_norm, layer.mlp_gate, mlp)

    def remember(self, index: int, layer: Layer, h: list[Slot]) -> None:
        """Lines 8 to 11, and Algorithm 2: `now` is the episode that the next segment begins in."""
        sizes = layer.sizes
        now = h[-1].episode
        both = self.memory[index] + h
        count = max(0, len(both) - sizes.memory)
        evicted = both[:count]
        self.memory[index] = both[count:]
        if not sizes.compressed:
            return
        if not evicted:
            self.losses[index].append([])
            return

        # Line 1: before anything was seen there were zeros.
        zero = torch.zeros(SIZE, dtype=torch.float64)
        evicted = [Slot(zero, None)] * (sizes.segment - count) + evicted
        evicted = [slot if slot.episode == now else Slot(zero, None) for slot in evicted]
        new_slots = literal_compression(layer, self.config.compression, evicted, now)
        self.compressed[index] = (self.compressed[index] + new_slots)[-sizes.compressed :]

        # The terms of the loss.
        alive = [slot.episode == now for slot in evicted]
        old = [slot.vector for slot in evicted]
        new = [slot.vector for slot in new_slots]
        if self.config.compression_loss == "attention":
            loss = literal_loss(layer, self.pre_norm, [slot.vector for slot in h], old, new)
            self.losses[index].append([loss] if any(alive) else [])
        if self.config.compression_loss == "autoencoding":
            decoded = literal_decoding(layer, new)
            errors = [((x - y) ** 2).sum() / SIZE for x, y in zip(decoded, old)]
            self.losses[index].append([error for error, present in zip(errors, alive) if present])


def literal_call(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> tuple[Tensor, dict, list[Literal]]:
    """Features [B, T, D], losses by name, and what each row remembers."""
    rows = [Literal(core) for _ in inputs]
    with torch.no_grad():
        features = torch.stack([row.run(x, begins) for row, x, begins in zip(rows, inputs, reset)])

    # The mean over segments of the mean over the terms of all rows.
    losses = {}
    for index in range(core.config.num_layers):
        segments = []
        for segment in range(len(rows[0].losses[index])):
            terms = []
            for row in rows:
                terms += row.losses[index][segment]
            segments.append(sum(terms) / len(terms) if terms else 0.0)
        if segments and core.config.compression_loss in ("attention", "autoencoding"):
            losses[f"compression/layer_{index}"] = sum(segments) / len(segments)
    return features, losses, rows


def check_against_literal(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> None:
    """Features, losses and the memories after the last step."""
    features, losses, rows = literal_call(core, inputs, reset)
    output = core(inputs, reset, core.initial_state(len(inputs)))
    assert_same(output.features.detach(), features)
    assert output.losses.keys() == losses.keys()
    for name, loss in losses.items():
        assert output.losses[name].value.item() == pytest.approx(float(loss), abs=1e-12)

    state = output.state
    episodes = reset.long().sum(dim=1).tolist()
    for index in range(core.config.num_layers):
        compressed_valid, memory_valid, _ = validity(core, state, index)
        for row, literal in enumerate(rows):
            episode = episodes[row]
            check_slots(state.memory[index][row], memory_valid[row], literal.memory[index], episode)
            check_slots(state.compressed[index][row], compressed_valid[row], literal.compressed[index], episode)


def check_slots(stored: Tensor, valid: Tensor, slots: list[Slot], episode: int) -> None:
    """The newest slots [S, D] of a memory are those of the literal. The literal has none where nothing was seen."""
    alive = [slot.episode == episode for slot in slots]
    assert valid.tolist() == [False] * (len(valid) - len(alive)) + alive
    for slot, actual in zip(reversed(slots), reversed(stored)):
        assert_same(actual, slot.vector)
