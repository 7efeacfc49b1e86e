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
    """A small config with one layer, unless `num_layers` is given."""
    sizes = {"segment_size": n_s, "memory_size": n_m, "window": w, "clusters": k, "groups": groups}
    num_layers = fields.pop("num_layers", 1)
    return RoutingTransformerConfig(SIZE, num_layers, HEADS, 6, **sizes, **fields)


# n_s, n_m, w, k and the number of groups.
SIZES = [(4, 3, 3, 3, 1), (4, 3, 2, 3, 2), (4, 0, 3, 2, 1), (3, 5, 1, 4, 2), (1, 2, 2, 2, 1)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def literal_cluster(layer: RoutedLayer, group: int, weight: Tensor, x: Tensor) -> int:
    """The centroid of the group that is nearest to the group's part of a projection of x [D]."""
    size = SIZE // HEADS
    vector = (weight @ x)[group * size : (group + 1) * size]
    centered = vector - vector.mean()
    cosines = [float(centered @ unit(centroid)) for centroid in layer.router.centroids[group]]
    return cosines.index(max(cosines))


class Literal:
    """One layer for one row: rings are lists of times, and each step looks for the slots that it may attend to.

    `rings[group][cluster]` has the times of the steps that were filed there, oldest first.
    """

    def __init__(self, layer: RoutedLayer, inputs: Tensor, reset: Tensor) -> None:
        self.layer = layer
        self.inputs = inputs
        self.episode = reset.long().cumsum(dim=0).tolist()
        self.sizes = layer.sizes
        self.rings: list[list[list[int]]] = [[[] for _ in range(self.sizes.clusters)] for _ in range(self.sizes.groups)]

    def run(self) -> Tensor:
        n_s = self.sizes.segment
        outputs = []
        for now in range(len(self.inputs)):
            first_of_segment = now - now % n_s
            oldest = first_of_segment - self.sizes.memory
            outputs.append(self.step(now, oldest))
            if now + 1 == first_of_segment + n_s:
                # The segment enters memory, and as many steps leave it.
                for time in range(max(0, oldest), oldest + n_s):
                    self.file(time)
        return torch.stack(outputs)

    def file(self, time: int) -> None:
        """Adds a step to the ring of its cluster, in each group."""
        for group, rings in enumerate(self.rings):
            cluster = literal_cluster(self.layer, group, self.layer.router.key.weight, self.inputs[time])
            rings[cluster] = [*rings[cluster], time][-self.sizes.window :]

    def step(self, now: int, oldest: int) -> Tensor:
        """The output of a step. It sees a ring, and all steps since the oldest of memory, which may be before 0."""
        layer = self.layer
        attention = layer.attention
        x = self.inputs[now]
        w_k, w_v = attention.key_value.weight.chunk(2)
        size = SIZE // HEADS
        outputs = []
        for head in range(HEADS):
            # Each slot as its time, and the time at which it is placed. A ring is placed as if its newest member stood
            # before the oldest slot of memory.
            group = head * self.sizes.groups // HEADS
            ring = self.rings[group][literal_cluster(layer, group, layer.router.query.weight, x)]
            slots = [(time, oldest - rank) for rank, time in enumerate(reversed(ring), start=1)]
            slots += [(time, time) for time in range(max(0, oldest), now + 1)]

            # Dai et al. 2019, section 3.3; see `tests.agent.literal`.
            part = slice(head * size, (head + 1) * size)
            q = (attention.query.weight @ x)[part]
            u = attention.content_bias[head, 0]
            v = attention.position_bias[head, 0]
            scores = []
            values = []
            for time, placed_at in slots:
                if self.episode[time] != self.episode[now]:
                    continue
                encoding = sinusoids(torch.tensor([now - placed_at]), SIZE)[0]
                key = (w_k @ self.inputs[time])[part]
                position = (attention.position.weight @ encoding)[part]
                scores.append(((q + u) @ key + (q + v) @ position) / math.sqrt(size))
                values.append((w_v @ self.inputs[time])[part])
            weights = torch.stack(scores).softmax(dim=0)
            outputs.append(sum(weight * value for weight, value in zip(weights, values)))
        a = literal_norm(layer.attention_norm, x + attention.output.weight @ torch.cat(outputs))
        up, _, down = layer.mlp
        return literal_norm(layer.mlp_norm, a + down.weight @ (up.weight @ a + up.bias).clamp(min=0) + down.bias)


@every_size
def test_features_rings_and_ages_equal_a_literal_loop(build: Callable[..., Any], sizes: Any) -> None:
    core = build(config_of(*sizes))
    steps = 45
    inputs = normal(2, steps, SIZE)
    reset = resets(2, steps, (1, 6), (1, 33))
    with torch.no_grad():
        output = core(inputs, reset, core.initial_state(2))
        for row in range(2):
            literal = Literal(core.layers[0], inputs[row], reset[row])
            assert_same(output.features[row], literal.run())
            for group, rings in enumerate(literal.rings):
                for cluster, ring in enumerate(rings):
                    slots = output.state.routed[0][row, group, cluster]
                    ages = output.state.routed_age[0][row, group, cluster]
                    check_ring(slots, ages, ring, inputs[row], output.state.offset)


def check_ring(slots: Tensor, ages: Tensor, ring: list[int], inputs: Tensor, offset: int) -> None:
    """The newest slots [w, D] and their ages [w] are those of the literal ring; the others were never written."""
    steps = len(inputs)
    unwritten = len(slots) - len(ring)
    assert_same(slots[unwritten:], inputs[ring], 0)
    first_of_segment = steps - offset
    assert ages[unwritten:].tolist() == [first_of_segment - time for time in ring]
    assert (ages[:unwritten] + offset > steps).all(), "older than any episode"


def test_attention_is_that_of_one_cluster_and_slots_trace_to_their_steps(build: Callable[..., Any]) -> None:
    core = build(config_of(groups=2))
    inputs = normal(2, 40, SIZE)
    state = core.initial_state(2)
    sizes = core.layers[0].sizes
    routed = sizes.older
    traced = 0
    for t in range(40):
        with torch.no_grad():
            output = core(inputs[:, t : t + 1], resets(2, 1), state, return_attention=True)
        (weights,) = output.attention
        ages = core.slot_ages(0, state)
        assert weights.shape == (2, HEADS, 1, ages.shape[1])
        assert_same(weights.sum(dim=-1), torch.ones(2, HEADS, 1).double())
        assert_same(core.attention_by_kind(output.attention).sum(dim=-1), torch.ones(1, 2, HEADS, 1).double())

        slots = torch.cat([state.routed[0].flatten(1, 3), state.memory[0], state.segment[0]], dim=1)
        for row in range(2):
            for head in range(HEADS):
                seen = weights[row, head, 0].nonzero().flatten().tolist()

                # Each of the two heads has its own group, and sees at most one cluster of it.
                clusters = {slot // sizes.window for slot in seen if slot < routed}
                assert len(clusters) <= 1
                for cluster in clusters:
                    assert cluster // sizes.clusters == head

                # Each slot is the step that its age says. The step itself is not in the state yet.
                for slot in seen:
                    oldest, newest = ages[row, slot].tolist()
                    assert oldest == newest <= t
                    if newest > 0:
                        assert_same(slots[row, slot], inputs[row, t - newest], 0)
                        traced += slot < routed
        state = output.state
    assert traced > 50, "many slots were routed ones"


@pytest.mark.parametrize("groups", [1, 2])
def test_one_cluster_is_a_longer_memory(build: Callable[..., Any], groups: int) -> None:
    """Memory n_m and one ring of w steps are a Transformer-XL with a memory of n_m + w steps."""
    routed = build(config_of(4, n_m=3, w=6, k=1, groups=groups, num_layers=2))
    memory = build(TransformerXLConfig(SIZE, 2, HEADS, 6, segment_size=4, memory_size=9))
    memory.load_state_dict(routed.state_dict(), strict=False)
    inputs = normal(2, 50, SIZE)
    reset = resets(2, 50, (1, 30))
    actual = routed(inputs, reset, routed.initial_state(2)).features
    expected = memory(inputs, reset, memory.initial_state(2)).features
    assert_same(actual, expected)


def test_a_step_in_a_rare_cluster_is_held_and_seen_long_after(build: Callable[..., Any]) -> None:
    """A cue of the rare cluster comes first, then only steps of other clusters, then a question."""
    core = build(config_of(4, n_m=3, w=3, k=3))
    router = core.layers[0].router
    steps = 10 * 3 * 3 + 10  # more than ten times what all rings have room for

    # Of many random inputs, those that are filed in the rare cluster, and those that ask for it.
    inputs = normal(1, 40 * steps, SIZE)
    as_key = router.nearest(inputs, router.key)[0, 0]
    as_query = router.nearest(inputs, router.query)[0, 0]
    rare = int(as_key.bincount(minlength=3).argmin())
    cue = inputs[:, as_key == rare][:, :1]
    others = inputs[:, as_key != rare][:, :steps]
    question = inputs[:, as_query == rare][:, :1]
    other_question = inputs[:, as_query != rare][:, :1]

    def depends_on_cue(last: Tensor) -> bool:
        stream = torch.cat([cue, others, last], dim=1).requires_grad_()
        features = core(stream, resets(1, steps + 2), core.initial_state(1)).features
        total = features[0, -1].sum() + features[0, -1, 0]  # a norm may make the sum alone constant
        (gradient,) = torch.autograd.grad(total, stream)
        return bool(gradient[0, 0].any())

    assert depends_on_cue(question)
    assert not depends_on_cue(other_question)


def test_losses_train_the_routers_and_nothing_else_does(build: Callable[..., Any]) -> None:
    core = build(config_of(4, (3, 2), (2, 3), 2, 2, num_layers=2)).train()
    inputs = normal(2, 24, SIZE).requires_grad_()
    output = core(inputs, resets(2, 24, (0, 9)), core.initial_state(2))
    assert set(output.losses) == {"routing/layer_0", "routing/layer_1", "router/layer_0", "router/layer_1"}

    def trained_by(loss: Tensor) -> set[int]:
        """The parameters whose gradient is not 0."""
        core.zero_grad(set_to_none=True)
        loss.backward(retain_graph=True)
        return {id(parameter) for parameter in core.parameters() if parameter.grad is not None and parameter.grad.any()}

    # The centroids by their own losses, the whole router by all.
    routers = {id(parameter) for parameter in core.compression_parameters()}
    centroids = {id(layer.router.centroids) for layer in core.layers}
    assert centroids < routers
    of_centroids = [loss.value for name, loss in output.losses.items() if name.startswith("routing")]
    every_loss = [loss.value for loss in output.losses.values()]
    assert trained_by(sum(of_centroids)) == centroids
    assert trained_by(sum(every_loss)) == routers
    assert inputs.grad is None

    # The features train all else.
    core.zero_grad(set_to_none=True)
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in routers), name
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("stops", [[30], [7, 8, 30]], ids=str)
def test_a_gradient_step_is_the_moving_average_of_means(build: Callable[..., Any], stops: list[int]) -> None:
    """Over learners that share a batch, too: their sums over the counts of all of them."""
    rate = 0.3
    core = build(config_of(groups=2, k=4)).train()
    router = core.layers[0].router
    inputs = normal(3, 30, SIZE)

    # The moving average of each centroid with the mean of the queries and keys that are nearest to it.
    projections = (router.query, router.key)
    vectors = torch.cat([router.vectors(inputs, each) for each in projections], dim=2).detach()
    nearest = torch.cat([router.nearest(inputs, each) for each in projections], dim=2)
    expected = router.centroids.detach().clone()
    for group in range(2):
        for cluster in range(4):
            members = vectors[:, group][nearest[:, group] == cluster]
            if len(members):
                expected[group, cluster] = (1 - rate) * expected[group, cluster] + rate * members.mean(dim=0)

    # The loss from the sums and counts of one call or of several.
    total, count = 0, 0
    state = core.initial_state(3)
    start = 0
    for stop in stops:
        output = core(inputs[:, start:stop], resets(3, stop - start), state)
        total = total + output.losses["routing/layer_0"].total
        count = count + output.losses["routing/layer_0"].count
        state = output.state
        start = stop
    (total / count.clamp(min=1)).mean().backward()
    with torch.no_grad():
        assert_same(router.centroids - rate * router.centroids.grad, expected)


@pytest.mark.parametrize("before", [1, 14])
def test_the_loss_of_the_router_is_that_of_its_formula(build: Callable[..., Any], before: int) -> None:
    """The loss of three steps, which see the slots whose weights are not 0."""
    n_s, n_m, w, k = 6, 2, 2, 3
    core = build(config_of(n_s, n_m, w, k, groups=2)).train()
    router = core.layers[0].router
    inputs = normal(1, before + 3, SIZE)
    with torch.no_grad():
        state = core(inputs[:, :before], resets(1, before), core.initial_state(1)).state
    now = inputs[:, before:]
    output = core(now, resets(1, 3, (0, 2)), state, return_attention=True)

    routed_slots = k * w
    recent = torch.cat([state.memory[0][0], output.state.segment[0][0]])
    query = router(now, router.query)[0]
    total = 0.0
    routed_seen = 0
    for group in range(2):
        # Weights over the slots of this group, which is a head, and over those of memory and segment.
        by_part = output.attention[0].detach()[0, group].split([routed_slots, routed_slots, n_m + n_s], dim=-1)
        weights = torch.cat([by_part[group], by_part[2]], dim=-1)
        slots = torch.cat([state.routed[0][0, group].flatten(0, 1), recent])
        key = router(slots[None], router.key)[0, group]

        # The probability that a query and a key are in one cluster.
        together = (query[group] / TEMPERATURE).softmax(-1) @ (key / TEMPERATURE).softmax(-1).T
        for t in range(3):
            seen = weights[t].nonzero().flatten().tolist()
            every = ELSEWHERE + sum(together[t, slot].item() for slot in seen)
            for slot in seen:
                total -= weights[t, slot].item() ** 2 * math.log(together[t, slot].item() / every)
                routed_seen += slot < routed_slots
    assert (routed_seen > 0) == (before > n_m + n_s)
    assert output.losses["router/layer_0"].value.item() == pytest.approx(total / (2 * 3), abs=1e-8)


def test_the_router_computes_in_float32_under_autocast(build: Callable[..., Any]) -> None:
    """Its choices, both of its losses and their gradients are those without autocast."""
    groups, clusters, window, steps = 2, 3, 4, 500
    core = build(config_of(w=window, k=clusters, groups=groups), torch.float32)
    router = core.layers[0].router
    inputs = normal(2, steps, SIZE).float()
    routed = normal(2, groups, clusters * window, SIZE).float()
    weights = normal(2, groups, steps, clusters * window + steps).float().square()
    seen = torch.zeros(weights.shape)

    def compute(autocast: bool) -> list[Tensor]:
        router.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            assert router.key(inputs).dtype == (torch.bfloat16 if autocast else torch.float32)
            choices = [router(inputs, router.key), router.nearest(inputs, router.query)]
            losses = [*router.centroid_loss(inputs), *router.loss(inputs, routed, inputs, weights, seen)]
        sum(part.sum() for part in losses).backward()
        gradients = [parameter.grad for parameter in router.parameters()]
        return [*choices, *losses, *gradients]

    expected = compute(autocast=False)
    found = compute(autocast=True)
    for part, same in zip(found, expected, strict=True):
        largest = float(same.detach().abs().max())
        torch.testing.assert_close(part, same, rtol=1e-5, atol=1e-5 * largest)  # bfloat16 is exact to 4e-3


def test_resized_equals_a_core_built_with_these_sizes(build: Callable[..., Any]) -> None:
    core = build(config_of(4, (3, 3), (3, 0), num_layers=2))
    resized = core.resized(memory_size=(5, 1), window=(6, 0))
    built = build(config_of(4, (5, 1), (6, 0), num_layers=2), seed=1)
    built.load_state_dict(core.state_dict())
    inputs = normal(2, 60, SIZE)
    reset = resets(2, 60, (1, 13))
    actual = resized(inputs, reset, resized.initial_state(2)).features
    expected = built(inputs, reset, built.initial_state(2)).features
    assert_same(actual, expected, 0)

    with pytest.raises(ValueError, match=r"window: expected 0 exactly where it was 0 before \(\(3, 0\)\), got 4"):
        core.resized(window=4)
    with pytest.raises(ValueError, match="sizes: expected memory_size or window of this core, got compressed_size=4"):
        core.resized(memory_size=3, compressed_size=4)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="groups: expected a divisor of num_heads = 2, got 3"):
        config_of(groups=3)
    with pytest.raises(ValueError, match=r"clusters: expected one number or 1 \(num_layers\), got \(2, 3\)"):
        config_of(k=(2, 3))
