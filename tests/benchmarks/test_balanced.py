"""The published routing layer: it is Algorithm 1 written out, it leaks the future, and so it cannot act or sample."""

import math
from collections.abc import Callable
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
    """A model of 5 tokens and width 16 in double precision; some of its four heads route."""
    torch.manual_seed(0)
    sizes = {"clusters": 4, "window": 6, "local": 6, "longest": STEPS, "routing_layers": 2, **sizes}
    config = balanced.BalancedConfig(16, routing_heads=routing_heads, **sizes)
    return SequenceModel(balanced.BalancedTransformer(config), 5, tied=False).double().eval()


def draw(rows: int, seed: int = 0) -> Tensor:
    """Random tokens, a whole sequence and the token that follows: [rows, STEPS + 1]."""
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
            attended = sum(score * values[other] for score, other in zip(scores, seen))
            outputs[step].append(attended / sum(scores))

    means: list[Tensor | None] = []
    for of_clusters in outputs:
        means.append(torch.stack(of_clusters).mean(dim=0) if of_clusters else None)
    return means


def zeros_for_none(outputs: list[Tensor | None], size: int) -> Tensor:
    """The outputs of all steps [n, size], zeros for a step that no centroid takes."""
    zeros = torch.zeros(size).double()
    return torch.stack([zeros if output is None else output for output in outputs])


def standardized(x: Tensor) -> Tensor:
    """Layer normalization without weights."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()


def literal_local_attention(query: Tensor, key: Tensor, value: Tensor, local: int) -> list[Tensor | None]:
    """Attention of one head of size 4 to the last `local` steps, its own included: the outputs of the steps."""
    outputs: list[Tensor | None] = []
    for step in range(len(query)):
        seen = range(max(0, step - local + 1), step + 1)
        scores = torch.stack([query[step] @ key[other] / 2 for other in seen])
        outputs.append(sum(weight * value[other] for weight, other in zip(scores.softmax(dim=0), seen)))
    return outputs


@pytest.mark.parametrize("window", [3, 10, 99])
def test_attention_is_algorithm_1_written_out(window: int) -> None:
    rows, heads, steps, clusters, size = 2, 3, 10, 2, 4
    torch.manual_seed(0)
    vectors = unit(torch.randn(rows, heads, steps, size).double())
    values = torch.randn(rows, heads, steps, size).double()
    centroids = unit(torch.randn(heads, clusters, size).double())
    found = balanced.balanced_weights(vectors, centroids, window) @ values

    left_out = 0
    for row in range(rows):
        for head in range(heads):
            outputs = literal_routing(vectors[row, head], values[row, head], centroids[head], window)
            left_out += sum(each is None for each in outputs)
            torch.testing.assert_close(found[row, head], zeros_for_none(outputs, size))
    assert bool(left_out) == (window < steps), "steps in no cluster are part of the test"


@torch.no_grad()
@pytest.mark.parametrize("local", [1, 3, STEPS])
def test_a_layer_is_its_literal_formula(local: int) -> None:
    """Two local heads, which see the last `local` steps with their own, and two routing heads."""
    local_heads, routing_heads, head_size, window = 2, 2, 4, 3
    heads = local_heads + routing_heads
    (layer, _) = make_model(routing_heads, local=local, window=window, clusters=3).core.layers
    inputs = torch.randn(2, 12, heads * head_size).double()
    found = layer(inputs)

    left_out = 0
    for x, output in zip(inputs, found):
        projected = standardized(x) @ layer.project.weight.T + layer.project.bias
        query, key, value = projected.unflatten(-1, (3, heads, head_size)).unbind(dim=1)
        joined = []
        for head in range(heads):
            if head < local_heads:
                outputs = literal_local_attention(query[:, head], key[:, head], value[:, head], local)
            else:
                vectors = standardized(query[:, head]) / math.sqrt(head_size)
                centroids = layer.centroids[head - local_heads]
                outputs = literal_routing(vectors, value[:, head], centroids, window)
            left_out += sum(each is None for each in outputs)
            joined.append(zeros_for_none(outputs, head_size))
        x = x + torch.cat(joined, dim=1) @ layer.merge.weight.T + layer.merge.bias
        torch.testing.assert_close(output, x + layer.mlp(layer.norms[1](x)))
    assert left_out, "steps in no cluster are part of the test"


@torch.no_grad()
@pytest.mark.parametrize("routing_heads", [0, 2, 4])
def test_later_steps_change_earlier_outputs(routing_heads: int) -> None:
    """The leak. With local heads alone there is none, and a likelihood from prefixes never has one."""
    # 16 steps predict tokens that both have; the steps that follow differ.
    common = 16
    model = make_model(routing_heads)
    tokens = draw(8)
    prefix = tokens[:, : common + 1]
    edited = torch.cat([prefix, draw(8, seed=1)[:, common + 1 :]], dim=1)

    before = balanced.teacher_forced(model, tokens)[:, :common]
    after = balanced.teacher_forced(model, edited)[:, :common]
    changed = ((before - after).abs() > 1e-9).double().mean()
    if routing_heads:
        assert changed > 0.2
    else:
        assert changed == 0

    alone = balanced.prefix_only(model, prefix)
    whole = balanced.prefix_only(model, tokens)
    torch.testing.assert_close(alone, whole[:, :common])
    torch.testing.assert_close(alone, balanced.prefix_only(model, edited)[:, :common], rtol=0, atol=0)
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

    fresh = bits(4096)

    def bits_and_error(likelihood: Callable[[SequenceModel, Tensor], Tensor]) -> tuple[float, float]:
        """The mean of bits over sequences, and its standard error."""
        with torch.no_grad():
            found = likelihood(model, fresh).mean(dim=1) / math.log(2)
        return float(found.mean()), float(found.std()) / math.sqrt(len(found))

    published, error = bits_and_error(balanced.teacher_forced)
    assert published < 1 - 4 * error
    sampled, error = bits_and_error(balanced.prefix_only)
    assert sampled > 1 + 4 * error


def test_sequences_of_images_are_whole_images() -> None:
    with pytest.raises(ValueError, match=r"steps: expected 3 n\^2, the bytes of an image of n x n pixels, got 100"):
        balanced.sequences("images", "train", 100, torch.Generator())


def test_a_corpus_that_is_shorter_than_a_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 bytes; a sequence begins with the token 0, which is no byte."""
    split = SimpleNamespace(tokens=np.arange(1, 101))
    corpus = SimpleNamespace(make_model=lambda: SimpleNamespace(vocabulary=257), splits={"test": split})
    monkeypatch.setattr(balanced, "open_data", lambda config: corpus)
    draw_whole, _ = balanced.sequences("text", "test", 100, torch.Generator())
    assert draw_whole(2).tolist() == [list(range(101))] * 2
    with pytest.raises(ValueError, match=r"^steps: expected at most 100, the bytes of the split test, got 101$"):
        balanced.sequences("text", "test", 101, torch.Generator())


def test_divergence_of_heads_is_the_literal_one() -> None:
    """Sums of p log p; 0 for equal heads, ln 2 for heads that see different steps."""
    steps = 3
    p, q = torch.rand(2, 1, steps, steps).double().softmax(dim=-1)
    total = 0.0
    for step in range(steps):
        for x, y in zip(p[0, step].tolist(), q[0, step].tolist()):
            middle = (x + y) / 2
            total += (x * math.log(x / middle) + y * math.log(y / middle)) / 2
    assert balanced.divergence(p, q) == pytest.approx(total / steps)

    assert balanced.divergence(p, p) == pytest.approx(0)
    own_step = torch.eye(steps)[None]
    other_step = torch.eye(steps).roll(1, 0)[None]
    assert balanced.divergence(own_step, other_step) == pytest.approx(math.log(2))


def test_divergence_of_heads_is_over_steps_in_clusters_of_both() -> None:
    """A step in no cluster attends to nothing."""
    every = torch.diag(torch.tensor([1.0, 1.0, 1.0]))[None]
    first = torch.diag(torch.tensor([1.0, 0.0, 0.0]))[None]
    last = torch.diag(torch.tensor([0.0, 0.0, 1.0]))[None]
    assert balanced.divergence(every, first) == 0
    assert balanced.divergence(first, every) == 0
    assert math.isnan(balanced.divergence(first, last)), "no step in common"


@pytest.mark.parametrize(("rows", "steps"), [(3, STEPS), (1, 2)])
def test_centroids_move_in_training_only_and_to_the_means(rows: int, steps: int) -> None:
    heads, head_size, clusters = 4, 4, 4
    (layer, _) = make_model(heads).core.layers
    before = layer.centroids.clone()
    inputs = torch.randn(rows, steps, heads * head_size).double()

    layer.eval()(inputs)
    torch.testing.assert_close(layer.centroids, before, rtol=0, atol=0)

    # Each moves by one percent towards the mean of the vectors to which it is nearest.
    layer.train()(inputs)
    query, _, _ = layer.project(layer.norms[0](inputs)).chunk(3, dim=-1)
    query = query.unflatten(-1, (heads, head_size))
    empty = 0
    for head in range(heads):
        vectors = unit(query[:, :, head]).reshape(-1, head_size)
        nearest = (vectors @ before[head].T).argmax(dim=1)
        for cluster in range(clusters):
            expected = before[head, cluster]
            members = vectors[nearest == cluster]
            if len(members) > 0:
                expected = 0.99 * expected + 0.01 * members.mean(dim=0)
            else:
                empty += 1
            torch.testing.assert_close(layer.centroids[head, cluster], expected)
    assert bool(empty) == (steps == 2), "a centroid that is nearest to nothing stays"


def test_acting_and_sampling_are_refused_with_the_reason() -> None:
    assert balanced.BalancedTransformer not in CORE_CLASSES.values()
    model = make_model(2)
    words = "can neither act nor sample: which steps are members"
    with pytest.raises(ValueError, match=words):
        next(sample(model, draw(1), 1))
    with pytest.raises(ValueError, match=words):
        model(draw(1), torch.zeros(1, STEPS + 1, dtype=torch.bool), ())
    agent = Agent(AgentConfig(torso="small", torso_size=16), (24, 32, 3), 4)
    agent.core = model.core
    with pytest.raises(ValueError, match=words):
        agent.initial_state(1)
