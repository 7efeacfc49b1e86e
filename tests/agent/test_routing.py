"""The Routing Transformer equals a literal loop over steps; its filing, its losses and what it holds."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import RoutingTransformerConfig, TransformerXLConfig
from agent.core.attention import sinusoids
from agent.core.routing import ELSEWHERE, TEMPERATURE, RoutedLayer, unit
from tests.agent.literal import literal_norm
from tests.agent.tiny import HEADS, assert_same, normal, resets

SIZE = 12  # with the SIZE of other tests, routing vectors would have two features and so two directions


def config_of(n_s: int = 4, n_m: Any = 3, w: Any = 3, k: Any = 3, groups: int = 1, **fields: Any) -> Any:
    sizes = {"segment_size": n_s, "memory_size": n_m, "window": w, "clusters": k, "groups": groups}
    return RoutingTransformerConfig(SIZE, fields.pop("num_layers", 1), HEADS, 6, **sizes, **fields)


SIZES = [(4, 3, 3, 3, 1), (4, 3, 2, 3, 2), (4, 0, 3, 2, 1), (3, 5, 1, 4, 2), (1, 2, 2, 2, 1)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def literal_cluster(layer: RoutedLayer, group: int, weight: Tensor, x: Tensor) -> int:
    """The centroid of the group that is nearest to the group's part of a projection of x [D]."""
    router, size = layer.router, SIZE // HEADS
    vector = (weight @ x)[group * size : (group + 1) * size]
    best = [float((vector - vector.mean()) @ unit(centroid)) for centroid in router.centroids[group]]
    return best.index(max(best))


class Literal:
    """One layer for one row: rings are lists of times, and each step looks for the slots that it may attend to."""

    def __init__(self, layer: RoutedLayer, inputs: Tensor, reset: Tensor) -> None:
        self.layer, self.inputs = layer, inputs
        self.episode = reset.long().cumsum(dim=0).tolist()
        self.sizes = layer.sizes
        self.rings: list[list[list[int]]] = [[[] for _ in range(self.sizes.clusters)] for _ in range(self.sizes.groups)]

    def run(self) -> Tensor:
        n_s, n_m, groups, _, window = self.sizes
        outputs = []
        for now in range(len(self.inputs)):
            first = now - now % n_s  # of the segment
            outputs.append(self.step(now, first - n_m, list(range(max(0, first - n_m), now + 1))))
            if now + 1 == first + n_s:
                for time in range(first - n_m, first - n_m + n_s):
                    for group in range(groups if time >= 0 else 0):
                        cluster = literal_cluster(self.layer, group, self.layer.router.key.weight, self.inputs[time])
                        ring = self.rings[group][cluster]
                        ring.append(time)
                        del ring[: max(0, len(ring) - window)]
        return torch.stack(outputs)

    def step(self, now: int, oldest: int, local: list[int]) -> Tensor:
        layer, x, attention = self.layer, self.inputs[now], self.layer.attention
        w_k, w_v = attention.key_value.weight.chunk(2)
        size, joined = SIZE // HEADS, []
        for head in range(HEADS):
            part, group = slice(head * size, (head + 1) * size), head * self.sizes.groups // HEADS
            q, u = (attention.query.weight @ x)[part], attention.content_bias[head, 0]
            v = attention.position_bias[head, 0]
            mine = self.rings[group][literal_cluster(layer, group, layer.router.query.weight, x)]
            scores, values = [], []
            # The ring is placed as if its newest member stood before the oldest slot of memory.
            placed = [(time, oldest - rank) for rank, time in enumerate(reversed(mine), start=1)]
            for time, seen_at in placed + [(time, time) for time in local]:
                if self.episode[time] != self.episode[now]:
                    continue
                key = (w_k @ self.inputs[time])[part]
                place = (attention.position.weight @ sinusoids(torch.tensor([now - seen_at]), SIZE)[0])[part]
                scores.append(((q + u) @ key + (q + v) @ place) / math.sqrt(size))
                values.append((w_v @ self.inputs[time])[part])
            joined.append(sum(weight * value for weight, value in zip(torch.stack(scores).softmax(dim=0), values)))
        a = literal_norm(layer.attention_norm, x + attention.output.weight @ torch.cat(joined))
        up, _, down = layer.mlp
        return literal_norm(layer.mlp_norm, a + down.weight @ (up.weight @ a + up.bias).clamp(min=0) + down.bias)


@every_size
def test_features_rings_and_ages_equal_a_literal_loop(build: Callable[..., Any], sizes: Any) -> None:
    core, inputs, reset = build(config_of(*sizes)), normal(2, 45, SIZE), resets(2, 45, (1, 6), (1, 33))
    with torch.no_grad():
        features, state, *_ = core(inputs, reset, core.initial_state(2))
        for row in range(2):
            literal = Literal(core.layers[0], inputs[row], reset[row])
            assert_same(features[row], literal.run())
            first = 45 - 45 % sizes[0]
            for group, rings in enumerate(literal.rings):
                for cluster, ring in enumerate(rings):
                    found = state.routed[0][row, group, cluster], state.routed_age[0][row, group, cluster]
                    slots, ages = (part[len(part) - len(ring) :] for part in found)
                    assert_same(slots, inputs[row][ring], 0)
                    assert ages.tolist() == [first - time for time in ring]
                    assert (found[1][: len(ages) - len(ring)] + state.offset > 45).all(), "older than any episode"


def test_attention_is_that_of_one_cluster_and_slots_trace_to_their_steps(build: Callable[..., Any]) -> None:
    core, inputs, traced = build(config_of(groups=2)), normal(2, 40, SIZE), 0
    state = core.initial_state(2)
    filed = core.layers[0].sizes.older
    for t in range(40):
        with torch.no_grad():
            output = core(inputs[:, t : t + 1], resets(2, 1), state, return_attention=True)
        (weights,), ages = output.attention, core.slot_ages(0, state)
        assert weights.shape == (2, HEADS, 1, ages.shape[1])
        assert_same(weights.sum(dim=-1), torch.ones(2, HEADS, 1).double())
        assert_same(core.attention_by_kind(output.attention).sum(dim=-1), torch.ones(1, 2, HEADS, 1).double())
        slots = torch.cat([state.routed[0].flatten(1, 3), state.memory[0], state.segment[0]], dim=1)
        for row in range(2):
            for head in range(HEADS):
                seen = weights[row, head, 0].nonzero().flatten().tolist()
                in_clusters = {slot // 3 for slot in seen if slot < filed}
                assert len(in_clusters) <= 1
                assert all(cluster // 3 == head for cluster in in_clusters), "each of the two heads has its own group"
                for slot in seen:
                    oldest, newest = ages[row, slot].tolist()
                    assert oldest == newest <= t
                    if newest:
                        assert_same(slots[row, slot], inputs[row, t - newest], 0)
                        traced += slot < filed
        state = output.state
    assert traced > 50


@pytest.mark.parametrize("groups", [1, 2])
def test_one_cluster_is_a_longer_memory(build: Callable[..., Any], groups: int) -> None:
    """Memory n_m and one ring of w steps are a Transformer-XL with a memory of n_m + w steps."""
    routed = build(config_of(4, 3, 6, 1, groups, num_layers=2))
    memory = build(TransformerXLConfig(SIZE, 2, HEADS, 6, segment_size=4, memory_size=9))
    memory.load_state_dict(routed.state_dict(), strict=False)
    inputs, reset = normal(2, 50, SIZE), resets(2, 50, (1, 30))
    features = [core(inputs, reset, core.initial_state(2)).features for core in (routed, memory)]
    assert_same(*features)


def test_a_step_in_a_rare_cluster_is_held_and_seen_long_after(build: Callable[..., Any]) -> None:
    core = build(config_of(4, 3, 3, 3))
    router, steps = core.layers[0].router, 10 * 3 * 3 + 10
    inputs = normal(1, 40 * steps, SIZE)
    as_key, as_query = (router.nearest(inputs, each)[0, 0] for each in (router.key, router.query))
    rare = int(as_key.bincount(minlength=3).argmin())
    cue, question = (inputs[:, cluster == rare][:, :1] for cluster in (as_key, as_query))
    stream = torch.cat([cue, inputs[:, as_key != rare][:, :steps], question], dim=1).requires_grad_()
    for asked in (question, inputs[:, as_query != rare][:, :1]):
        stream = torch.cat([stream[:, :-1].detach(), asked], dim=1).requires_grad_()
        features = core(stream, resets(1, steps + 2), core.initial_state(1)).features
        (gradient,) = torch.autograd.grad(features[0, -1].sum() + features[0, -1, 0], stream)
        assert bool(gradient[0, 0].any()) == (asked is question)


def test_losses_train_the_routers_and_nothing_else_does(build: Callable[..., Any]) -> None:
    core = build(config_of(4, (3, 2), (2, 3), 2, 2, num_layers=2)).train()
    inputs = normal(2, 24, SIZE).requires_grad_()
    mine = {id(parameter) for parameter in core.compression_parameters()}
    centroids = {id(layer.router.centroids) for layer in core.layers}
    assert centroids < mine
    output = core(inputs, resets(2, 24, (0, 9)), core.initial_state(2))
    assert set(output.losses) == {"routing/layer_0", "routing/layer_1", "router/layer_0", "router/layer_1"}
    of_centroids = {name: loss for name, loss in output.losses.items() if name.startswith("routing")}
    for losses, trained in ((of_centroids, centroids), (output.losses, mine)):
        core.zero_grad(set_to_none=True)
        sum(loss.value for loss in losses.values()).backward(retain_graph=True)
        for name, parameter in core.named_parameters():
            assert (parameter.grad is not None and bool(parameter.grad.any())) == (id(parameter) in trained), name
        assert inputs.grad is None
    core.zero_grad(set_to_none=True)
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in mine), name
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("stops", [[30], [7, 8, 30]], ids=str)
def test_a_gradient_step_is_the_moving_average_of_means(build: Callable[..., Any], stops: list[int]) -> None:
    """Over learners that share a batch, too: their sums over the counts of all of them."""
    core, rate = build(config_of(groups=2, k=4)).train(), 0.3
    router, inputs, state = core.layers[0].router, normal(3, 30, SIZE), core.initial_state(3)
    vectors = torch.cat([router.vectors(inputs, each) for each in (router.query, router.key)], dim=2).detach()
    nearest = torch.cat([router.nearest(inputs, each) for each in (router.query, router.key)], dim=2)
    expected = router.centroids.detach().clone()
    for group in range(2):
        for cluster in range(4):
            members = vectors[:, group][nearest[:, group] == cluster]
            if len(members):
                expected[group, cluster] = (1 - rate) * expected[group, cluster] + rate * members.mean(dim=0)
    before, total, count = 0, 0, 0
    for stop in stops:
        part = slice(before, stop)
        output = core(inputs[:, part], resets(3, stop - before), state)
        loss = output.losses["routing/layer_0"]
        total, count, state, before = total + loss.total, count + loss.count, output.state, stop
    (total / count.clamp(min=1)).mean().backward()
    with torch.no_grad():
        assert_same(router.centroids - rate * router.centroids.grad, expected)


@pytest.mark.parametrize("before", [1, 14])
def test_the_loss_of_the_router_is_that_of_its_formula(build: Callable[..., Any], before: int) -> None:
    """The loss of three steps, which see the slots whose weights are not 0."""
    core = build(config_of(6, 2, 2, 3, 2)).train()
    router, inputs = core.layers[0].router, normal(1, before + 3, SIZE)
    with torch.no_grad():
        state = core(inputs[:, :before], resets(1, before), core.initial_state(1)).state
    output = core(inputs[:, before:], resets(1, 3, (0, 2)), state, return_attention=True)
    recent = torch.cat([state.memory[0][0], output.state.segment[0][0]])
    query, total, old = router(inputs[:, before:], router.query)[0], 0.0, 0
    for group in range(2):
        slots = torch.cat([state.routed[0][0, group].flatten(0, 1), recent])
        weights = output.attention[0].detach()[0, group].split([6, 6, 8], dim=-1)
        weights = torch.cat([weights[group], weights[2]], dim=-1)
        key = router(slots[None], router.key)[0, group]
        together = (query[group] / TEMPERATURE).softmax(-1) @ (key / TEMPERATURE).softmax(-1).T
        for t in range(3):
            seen = weights[t].nonzero().flatten().tolist()
            every = ELSEWHERE + sum(together[t, s].item() for s in seen)
            total -= sum(weights[t, s].item() ** 2 * math.log(together[t, s].item() / every) for s in seen)
            old += sum(s < 6 for s in seen)
    assert bool(old) == (before > 8)
    assert output.losses["router/layer_0"].value.item() == pytest.approx(total / 6, abs=1e-8)


def test_the_router_computes_in_float32_under_autocast(build: Callable[..., Any]) -> None:
    """Its choices, both of its losses and their gradients are those without autocast."""
    groups, clusters, window, steps = 2, 3, 4, 500
    core = build(config_of(w=window, k=clusters, groups=groups), torch.float32)
    router, inputs = core.layers[0].router, normal(2, steps, SIZE).float()
    routed = normal(2, groups, clusters * window, SIZE).float()
    weights = normal(2, groups, steps, clusters * window + steps).float().square()
    seen = torch.zeros(weights.shape)

    def compute(autocast: bool) -> list[Tensor]:
        router.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            assert router.key(inputs).dtype == (torch.bfloat16 if autocast else torch.float32)
            parts = [router(inputs, router.key), router.nearest(inputs, router.query)]
            parts += [*router.centroid_loss(inputs), *router.loss(inputs, routed, inputs, weights, seen)]
        sum(part.sum() for part in parts[2:]).backward()
        return [*parts, *(parameter.grad for parameter in router.parameters())]

    expected = compute(autocast=False)
    found = compute(autocast=True)
    for part, same in zip(found, expected, strict=True):
        largest = float(same.detach().abs().max())
        torch.testing.assert_close(part, same, rtol=1e-5, atol=1e-5 * largest)  # bfloat16 is exact to 4e-3


def test_resized_equals_a_core_built_with_these_sizes(build: Callable[..., Any]) -> None:
    core = build(config_of(4, (3, 3), (3, 0), num_layers=2))
    resized, built = (
        core.resized(memory_size=(5, 1), window=(6, 0)),
        build(config_of(4, (5, 1), (6, 0), num_layers=2), seed=1),
    )
    built.load_state_dict(core.state_dict())
    inputs, reset = normal(2, 60, SIZE), resets(2, 60, (1, 13))
    actual, expected = (each(inputs, reset, each.initial_state(2)).features for each in (resized, built))
    assert_same(actual, expected, 0)
    with pytest.raises(ValueError, match=r"window: expected 0 exactly where it was 0 before \(\(3, 0\)\), got 4"):
        core.resized(window=4)
    with pytest.raises(ValueError, match="compressed_size: expected none for a core with window, got 4"):
        core.resized(memory_size=3, compressed_size=4)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="groups: expected a divisor of num_heads = 2, got 3"):
        config_of(groups=3)
    with pytest.raises(ValueError, match=r"clusters: expected one number or 1 \(num_layers\), got \(2, 3\)"):
        config_of(k=(2, 3))
