"""The published routing layer: it is Algorithm 1 written out, it leaks the future, and so it cannot act or sample."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from agent import Agent, AgentConfig
from agent.core.cores import CORE_CLASSES
from agent.core.routing import unit
from benchmarks import balanced
from sequences.model import SequenceModel
from sequences.sampling import sample

STEPS = 24


def make_model(routing_heads: int, **sizes: int) -> SequenceModel:
    torch.manual_seed(0)
    sizes = {"clusters": 4, "window": 6, "local": 6, "longest": STEPS, "routing_layers": 2, **sizes}
    config = balanced.BalancedConfig(16, routing_heads=routing_heads, **sizes)
    return SequenceModel(balanced.BalancedTransformer(config), 5, tied=False).double().eval()


def draw(rows: int, seed: int = 0) -> Tensor:
    return torch.randint(5, (rows, STEPS + 1), generator=torch.Generator().manual_seed(seed))


def literal_routing(vectors: Tensor, values: Tensor, centroids: Tensor, window: int) -> list[Tensor | None]:
    """Algorithm 1 for one head: the outputs of the steps [n], None for one that no centroid takes."""
    size = vectors.shape[1] ** 0.5
    outputs: list[list[Tensor]] = [[] for _ in vectors]
    for centroid in centroids:
        ordered = sorted(range(len(vectors)), key=lambda step: -float(vectors[step] @ centroid))
        members = sorted(ordered[:window])
        for step in members:
            seen = [other for other in members if other <= step]
            scores = [math.exp(size * float(vectors[step] @ vectors[other])) for other in seen]
            outputs[step].append(sum(score * values[other] for score, other in zip(scores, seen)) / sum(scores))
    return [torch.stack(each).mean(dim=0) if each else None for each in outputs]


@pytest.mark.parametrize("window", [3, 10, 99])
def test_attention_is_algorithm_1_written_out(window: int) -> None:
    torch.manual_seed(0)
    vectors, values = unit(torch.randn(2, 3, 10, 4).double()), torch.randn(2, 3, 10, 4).double()
    centroids, left_out = unit(torch.randn(3, 2, 4).double()), 0
    found = balanced.balanced_weights(vectors, centroids, window) @ values
    for row in range(2):
        for head in range(3):
            outputs = literal_routing(vectors[row, head], values[row, head], centroids[head], window)
            for step, expected in enumerate(outputs):
                left_out += expected is None
                expected = torch.zeros(4).double() if expected is None else expected
                torch.testing.assert_close(found[row, head, step], expected)
    assert bool(left_out) == (window < 10), "steps in no cluster are part of the test"


@torch.no_grad()
@pytest.mark.parametrize("local", [1, 3, STEPS])
def test_a_layer_is_its_literal_formula(local: int) -> None:
    """Two local heads, which see the last `local` steps with their own, and two routing heads."""
    (layer, _) = make_model(2, local=local, window=3, clusters=3).core.layers
    inputs, left_out = torch.randn(2, 12, 16).double(), 0
    found = layer(inputs)
    for row in range(2):
        x, joined = inputs[row], []
        normed = (x - x.mean(-1, True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        query, key, value = (normed @ layer.project.weight.T + layer.project.bias).chunk(3, dim=-1)
        for head in range(4):
            q, k, v = (each[:, 4 * head : 4 * head + 4] for each in (query, key, value))
            if head < 2:
                outputs: list[Tensor | None] = []
                for step in range(12):
                    seen = range(max(0, step - local + 1), step + 1)
                    weights = torch.stack([q[step] @ k[other] / 2 for other in seen]).softmax(dim=0)
                    outputs.append(sum(weight * v[other] for weight, other in zip(weights, seen)))
            else:
                vectors = (q - q.mean(-1, True)) / (q.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() / 2
                outputs = literal_routing(vectors, v, layer.centroids[head - 2], 3)
            left_out += sum(output is None for output in outputs)
            joined.append(torch.stack([torch.zeros(4).double() if each is None else each for each in outputs]))
        x = x + torch.cat(joined, dim=1) @ layer.merge.weight.T + layer.merge.bias
        torch.testing.assert_close(found[row], x + layer.mlp(layer.norms[1](x)))
    assert left_out, "steps in no cluster are part of the test"


@torch.no_grad()
@pytest.mark.parametrize("routing_heads", [0, 2, 4])
def test_later_steps_change_earlier_outputs(routing_heads: int) -> None:
    """The leak. With local heads alone there is none, and a likelihood from prefixes never has one."""
    model, tokens = make_model(routing_heads), draw(8)
    edited = torch.cat([tokens[:, :17], draw(8, seed=1)[:, 17:]], dim=1)
    # 16 steps predict tokens that both have; the steps that follow differ.
    before, after = (balanced.teacher_forced(model, each)[:, :16] for each in (tokens, edited))
    changed = ((before - after).abs() > 1e-9).double().mean()
    assert (changed > 0.2) if routing_heads else (changed == 0)
    alone, whole = (balanced.prefix_only(model, each) for each in (tokens[:, :17], tokens))
    torch.testing.assert_close(alone, whole[:, :16])
    torch.testing.assert_close(alone, balanced.prefix_only(model, edited)[:, :16], rtol=0, atol=0)
    if not routing_heads:
        torch.testing.assert_close(whole, balanced.teacher_forced(model, tokens))


@pytest.mark.slow
def test_training_finds_the_leak() -> None:
    """No causal model has less than 1 bit on independent fair bits; the published likelihood has, sampling has more."""
    bits, _ = balanced.sequences("bits", "train", 16, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    config = balanced.BalancedConfig(routing_heads=4, routing_layers=2, clusters=4, window=4, longest=16)
    model = SequenceModel(balanced.BalancedTransformer(config), 2, tied=False)
    balanced.train(model, bits, updates=250, rows=256, learning_rate=3e-3)
    with torch.no_grad():
        fresh = bits(4096)
        measured = [
            each(model, fresh).mean(dim=1) / math.log(2) for each in (balanced.teacher_forced, balanced.prefix_only)
        ]
    (leaking, error), (honest, other) = ((float(each.mean()), float(each.std()) / 64) for each in measured)
    assert leaking < 1 - 4 * error
    assert honest > 1 + 4 * other


def test_sequences_of_images_are_whole_images() -> None:
    with pytest.raises(ValueError, match=r"steps: expected 3 n\^2, the bytes of an image of n x n pixels, got 100"):
        balanced.sequences("images", "train", 100, torch.Generator())


def test_a_corpus_that_is_shorter_than_a_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = SimpleNamespace(
        make_model=lambda: SimpleNamespace(vocabulary=257), splits={"test": SimpleNamespace(tokens=np.arange(1, 101))}
    )
    monkeypatch.setattr(balanced, "open_data", lambda config: corpus)
    draw_whole, _ = balanced.sequences("text", "test", 100, torch.Generator())
    assert draw_whole(2).tolist() == [list(range(101))] * 2
    with pytest.raises(ValueError, match=r"^steps: expected at most 100, the bytes of the split test, got 101$"):
        balanced.sequences("text", "test", 101, torch.Generator())


def test_divergence_of_heads_is_the_literal_one() -> None:
    """Sums of p log p; 0 for equal heads, ln 2 for heads that see different steps."""
    p, q = torch.rand(2, 1, 3, 3).double().softmax(dim=-1)
    total = 0.0
    for a, b in zip(p[0].tolist(), q[0].tolist()):
        middle = [(x + y) / 2 for x, y in zip(a, b)]
        total += sum((x * math.log(x / m) + y * math.log(y / m)) / 2 for x, y, m in zip(a, b, middle))
    assert balanced.divergence(p, q) == pytest.approx(total / 3)
    assert balanced.divergence(p, p) == pytest.approx(0)
    assert balanced.divergence(torch.eye(3)[None], torch.eye(3).roll(1, 0)[None]) == pytest.approx(math.log(2))
    every, first, last = (torch.diag(torch.tensor(each))[None] for each in ([1.0, 1, 1], [1.0, 0, 0], [0.0, 0, 1]))
    for p, q in ((every, first), (first, every)):
        assert balanced.divergence(p, q) == 0, "steps in no cluster do not count"
    assert math.isnan(balanced.divergence(first, last)), "no step in common"


@pytest.mark.parametrize(("rows", "steps"), [(3, STEPS), (1, 2)])
def test_centroids_move_in_training_only_and_to_the_means(rows: int, steps: int) -> None:
    model = make_model(4).train()
    (layer, _), before = model.core.layers, model.core.layers[0].centroids.clone()
    inputs, empty = torch.randn(rows, steps, 16).double(), 0
    layer.eval()(inputs)
    torch.testing.assert_close(layer.centroids, before, rtol=0, atol=0)
    layer.train()(inputs)
    query = layer.project(layer.norms[0](inputs))[..., :16].unflatten(-1, (4, 4))
    for head in range(4):
        vectors = unit(query[:, :, head]).reshape(-1, 4)
        nearest = (vectors @ before[head].T).argmax(dim=1)
        for cluster in range(4):
            mine = vectors[nearest == cluster]
            mean = mine.mean(dim=0) if len(mine) else before[head, cluster]
            torch.testing.assert_close(layer.centroids[head, cluster], 0.99 * before[head, cluster] + 0.01 * mean)
            empty += not len(mine)
    assert bool(empty) == (steps == 2), "a centroid that is nearest to nothing stays"


def test_acting_and_sampling_are_refused_with_the_reason() -> None:
    assert balanced.BalancedTransformer not in CORE_CLASSES.values()
    model, words = make_model(2), "can neither act nor sample: which steps are members"
    with pytest.raises(ValueError, match=words):
        next(sample(model, draw(1), 1))
    with pytest.raises(ValueError, match=words):
        model(draw(1), torch.zeros(1, STEPS + 1, dtype=torch.bool), ())
    agent = Agent(AgentConfig(torso="small", torso_size=16), (24, 32, 3), 4)
    agent.core = model.core
    with pytest.raises(ValueError, match=words):
        agent.initial_state(1)
