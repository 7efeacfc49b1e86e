"""A causal Routing Transformer (Roy et al. 2020) as a recurrent core: what leaves memory is filed by content.

Slots of a layer are [routed | memory | segment]. docs/routing.md explains the semantics, and why they differ from the
paper, whose layer is not causal.

Axes: B batch, T time, S slots, H heads, D features (model_size), R features of a routing vector.
Sizes: n_s segment_size, n_m memory_size, G groups of heads, k clusters of a group, w slots of a cluster (window).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import KVCache
from .config import RoutedSizes, RoutingTransformerConfig
from .contract import Mean
from .transformer import Transformer, TransformerLayer, additive

TEMPERATURE = 0.3
"""Of the softmax over clusters in the router's loss. At 0.1 few pairs of query and key find a common cluster."""
ELSEWHERE = 0.5
"""Of the router's loss: a slot that no step sees is in the query's cluster with this probability. With 0, the loss is
small as soon as the right slot is more probable than the other local ones, even if its cluster is another."""


class RoutingState(NamedTuple):
    """The memory. One tensor for each layer; slots hold layer inputs.

    segment: [B, n_s, D], the segment in progress; the first `offset` steps are filled.
    memory: [B, n_m, D], oldest first.
    routed: [B, G, k, w, D], the last w steps that were filed in each cluster, oldest first.
    routed_age: [B, G, k, w] int64, steps from the slot's step to the first of the segment in progress. A slot belongs
        to the episode if that step does; slots that were never written are older than any episode.
    age: [B] int64, steps of the row's episode so far.
    offset: steps into the segment, an integer shared by the batch.
    cache: projected keys and values of each layer while weights do not change (see `with_cache`), else None.
    """

    segment: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    routed: tuple[Tensor, ...]
    routed_age: tuple[Tensor, ...]
    age: Tensor
    offset: int
    cache: tuple[KVCache, ...] | None = None


class RoutedLayerState(NamedTuple):
    """What one layer remembers: its part of each field of a `RoutingState`.

    losses: for each part of this call, by name, sums and counts of the losses of `Router`.
    """

    segment: Tensor
    memory: Tensor
    routed: Tensor
    routed_age: Tensor
    cache: KVCache
    losses: tuple[dict[str, tuple[Tensor, Tensor]], ...] = ()


class Router(nn.Module):
    """Chooses a cluster for each query and each key of layer inputs: the nearest of a group's centroids.

    Vectors and centroids have length 1, so the nearest is the one with the largest product (section 4.1). Vectors are
    projections of their own, not the queries and keys of attention, which are large along directions that they do not
    share. Computes in float32, also under autocast: rounding would file some steps elsewhere than an actor did.
    """

    def __init__(self, model_size: int, num_heads: int, groups: int, clusters: int) -> None:
        super().__init__()
        size = model_size // num_heads
        self.query = nn.Linear(model_size, groups * size, bias=False)
        self.key = nn.Linear(model_size, groups * size, bias=False)
        self.centroids = nn.Parameter(unit(torch.randn(groups, clusters, size)))

    def forward(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """Cosines [B, G, S, k] of `vectors` with the centroids; only the projection has gradients."""
        with full_precision(x):
            return self.vectors(x, projection) @ unit(self.centroids.detach()).transpose(-1, -2)

    def vectors(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """Routing vectors [B, G, S, R] of layer inputs [B, S, D] or, for each group, [B, G, S, D]; without gradient."""
        x, groups = x.detach(), len(self.centroids)
        if x.dim() == 4:
            return unit(x @ projection.weight.unflatten(0, (groups, -1)).mT)
        return unit(projection(x).unflatten(-1, (groups, -1)).transpose(1, 2))

    @torch.no_grad()
    def nearest(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """The cluster [B, G, S] int64 of layer inputs [B, S, D]."""
        return self(x, projection).argmax(dim=-1)

    def centroid_loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k-means of the vectors of queries and keys of x [B, T, D]: sums and counts [G k] for `Mean`.

        Its value is the sum over centroids of half the mean squared distance to the vectors that are nearest to each.
        So a step of gradient descent with rate r moves a centroid to (1 - r) centroid + r mean: the paper's moving
        average, which is a weight here. A centroid without vectors stays.
        """
        groups, clusters, _ = self.centroids.shape
        with full_precision(x), torch.no_grad():
            vectors = torch.cat([self.vectors(x, self.query), self.vectors(x, self.key)], dim=2)
            nearest = (vectors @ unit(self.centroids).transpose(-1, -2)).argmax(dim=-1)
            member = nearest[..., None] == torch.arange(clusters, device=x.device)  # [B, G, 2 T, k]
            count = member.sum(dim=(0, 2))
            sums = torch.einsum("bgsk,bgsr->gkr", member.to(vectors), vectors)
        # Over the vectors x of a cluster, the sum of |c - x|^2 is count |c|^2 - 2 c sum(x) + count, for |x| = 1.
        with full_precision(x):
            squares = count * (self.centroids.square().sum(dim=-1) + 1) - 2 * (self.centroids * sums).sum(dim=-1)
        # `Mean` divides by the number of entries.
        return squares.flatten() / 2 * (groups * clusters), count.flatten()

    def loss(self, x: Tensor, routed: Tensor, recent: Tensor, weights: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy between attention and the choice of a slot by cluster: its sum and its count, for `Mean`.

        The probability that a query and a slot are in one cluster, divided by the sum of these over the slots that the
        query sees and of ELSEWHERE, is compared with the attention between them. So queries and the keys that they
        attend to come to one cluster, and other keys leave it. The hard choice of a cluster has no gradient; this has,
        because local slots are attended to in whatever cluster they are.

        Args:
            x: [B, T, D], the inputs of the queries.
            routed: [B, G, k w, D], those of the routed slots of each group.
            recent: [B, S, D], those of the slots of memory and segment.
            weights: [B, G, T, k w + S], squared attention to the slots, a mean over the heads of each group. Squares,
                because most queries attend to nothing in particular.
            seen: [B, G, T, k w + S], 0 where a step sees a slot, -infinity elsewhere.
        """
        cosines = self(x, self.query), torch.cat([self(each, self.key) for each in (routed, recent)], dim=2)
        query, key = ((each / TEMPERATURE).softmax(dim=-1) for each in cosines)
        with full_precision(x):
            together = (query @ key.transpose(-1, -2)).clamp(min=1e-9).log()
            weights = weights.to(together)
            every = ((together + seen.to(together)).logsumexp(dim=-1, keepdim=True).exp() + ELSEWHERE).log()
            total = (weights * (every - together)).sum()
        return total[None], weights.new_full((1,), weights[..., 0].numel())


def full_precision(x: Tensor) -> torch.autocast:
    """No mixed precision; the meta device has none."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def unit(vectors: Tensor) -> Tensor:
    """Layer norm without scale and bias, then divided by the root of the size: of length 1 (section 4.1)."""
    return F.layer_norm(vectors, vectors.shape[-1:]) * vectors.shape[-1] ** -0.5


class RoutedLayer(TransformerLayer):
    """A transformer's layer, and the filing of its memories; without a window it is one of Transformer-XL."""

    def __init__(self, config: RoutingTransformerConfig, sizes: RoutedSizes) -> None:
        super().__init__(config, sizes, rings=max(1, sizes.clusters))
        self.router: Router | None = None
        if sizes.window:
            self.router = Router(config.model_size, config.num_heads, sizes.groups, sizes.clusters)

    def make_cache(self, offset: int, encoding: Tensor, routed: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """Projects the slots, of the segment the first `offset`; `encoding` [.., D] is of the distances ..., 1, 0."""
        n_s, n_m, groups, clusters, window = self.sizes
        recent = self.project(torch.cat([memory, segment[:, :offset]], dim=1))
        # [B, H, G k w, K] to [B, H, k w, K]: heads see the slots of their group.
        filed = (
            part.unflatten(1, (groups, -1)).unflatten(3, (groups, clusters * window)).diagonal(dim1=1, dim2=3)
            for part in self.project(routed.flatten(1, 3))
        )
        filed = (part.movedim(-1, 1).flatten(1, 2) for part in filed)
        keys, values = (F.pad(torch.cat(part, dim=2), (0, 0, 0, n_s - offset)) for part in zip(filed, recent))
        return KVCache(keys, values, self.attention.project_positions(encoding[-(window + n_m + n_s) :]), None, None)

    def bias(
        self, x: Tensor, slots: RoutedLayerState, bias: Tensor, age: Tensor, offset: int, unbroken: Tensor
    ) -> Tensor:
        """A step sees the slots of its episode in the cluster that is nearest to it."""
        if self.router is None:
            return bias
        cluster = self.router.nearest(x, self.router.query)
        mine = cluster[..., None] == torch.arange(self.sizes.clusters, device=x.device)
        valid = slots.routed_age + offset <= age[:, None, None, None]
        seen = (mine[..., None] & valid[:, :, None]).flatten(3) & unbroken[:, None, :, None]
        if self.sizes.groups > 1:
            seen = seen.repeat_interleave(self.config.num_heads // self.sizes.groups, dim=1)
        return torch.cat([additive(seen, bias), bias.expand(-1, seen.shape[1], -1, -1)], dim=-1)

    def observes(self, slots: RoutedLayerState) -> bool:
        return self.router is not None and torch.is_grad_enabled()

    def observe(self, x: Tensor, slots: RoutedLayerState, weights: Tensor, bias: Tensor) -> RoutedLayerState:
        """Adds the losses of the router, whose teacher is the attention."""
        assert self.router is not None
        groups, routed = self.sizes.groups, slots.routed.flatten(2, 3)
        recent = torch.cat([slots.memory, slots.segment], dim=1)[:, : bias.shape[-1] - routed.shape[2]]
        weights = weights.detach().square().unflatten(1, (groups, -1)).mean(dim=2)
        seen = bias[:, :: max(1, bias.shape[1] // groups)]
        losses = {"routing": self.router.centroid_loss(x), "router": self.router.loss(x, routed, recent, weights, seen)}
        return slots._replace(losses=(*slots.losses, losses))

    def slot_weights(self, weights: Tensor) -> Tensor:
        groups, filed = self.sizes.groups, self.sizes.clusters * self.sizes.window
        if groups == 1 or not filed:
            return weights
        routed, recent = weights[..., :filed], weights[..., filed:]
        own = torch.eye(groups, dtype=weights.dtype, device=weights.device)
        own = own.repeat_interleave(self.config.num_heads // groups, dim=0)[:, None, :, None]
        return torch.cat([(routed[:, :, :, None] * own).flatten(3), recent], dim=-1)

    def update_memory(self, slots: RoutedLayerState, age: Tensor, keep_cache: bool) -> RoutedLayerState:
        """A full segment enters memory; the memories that no longer fit are filed, each in its key's cluster."""
        n_s, n_m, groups, clusters, window = self.sizes
        segment, memory, routed, routed_age, cache, losses = slots
        both = torch.cat([memory, segment], dim=1)
        if self.router is None:
            # Nothing is filed: only memory moves.
            source = routed_age.flatten(2)
        else:
            cluster = self.router.nearest(both[:, :n_s], self.router.key)
            source, routed_age = self._file(cluster, routed_age)
            pool = torch.cat([routed.flatten(2, 3), both[:, None, :n_s].expand(-1, groups, -1, -1)], dim=2)
            routed = take(pool, source).unflatten(2, (clusters, window))
        if keep_cache:
            heads = source.repeat_interleave(self.config.num_heads // groups, dim=1)
            kept = slice(clusters * window + n_s, clusters * window + n_s + n_m)
            keys, values = (
                F.pad(torch.cat([take(part, heads), part[:, :, kept]], dim=2), (0, 0, 0, n_s))
                for part in (cache.keys, cache.values)
            )
            cache = cache.replaced(keys, values)
        memory = both[:, n_s:].contiguous()  # a view would keep the evicted steps
        return RoutedLayerState(torch.zeros_like(segment), memory, routed, routed_age, cache, losses)

    def _file(self, cluster: Tensor, ages: Tensor) -> tuple[Tensor, Tensor]:
        """Appends n_s steps, of the clusters [B, G, n_s], to the rings, and drops the oldest members.

        Returns the places [B, G, k w] of what the rings hold then in [rings | steps], and its ages [B, G, k, w].
        """
        n_s, n_m, _, clusters, window = self.sizes
        numbers = torch.arange(clusters, device=ages.device)
        member = cluster[:, :, None] == numbers[:, None]  # [B, G, k, n_s]
        order = member.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)  # members first, oldest first
        # In the list of a ring's old and new members: the last `window`.
        place = member.sum(dim=-1, keepdim=True) + torch.arange(window, device=ages.device)
        new = order.gather(-1, (place - window).clamp(min=0, max=n_s - 1)) + clusters * window
        source = torch.where(place < window, place + window * numbers[:, None], new).flatten(2)
        steps = torch.arange(n_m + n_s, n_m, -1, device=ages.device).expand(*ages.shape[:2], -1)
        aged = torch.cat([ages.flatten(2) + n_s, steps], dim=-1).gather(-1, source)
        return source, aged.view_as(ages)


def take(pool: Tensor, index: Tensor) -> Tensor:
    """Rows of `pool` [B, N, S, D] at `index` [B, N, J]: [B, N, J, D]. Copies whole rows, unlike a gather."""
    rows = torch.arange(pool.shape[0] * pool.shape[1], device=index.device)
    first = rows.view(*pool.shape[:2], 1) * pool.shape[2]
    return pool.flatten(0, 2).index_select(0, (index + first).flatten()).view(*index.shape, pool.shape[3])


class RoutingTransformer(Transformer):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    The losses are `routing/layer_<i>`, which trains the centroids, and `router/layer_<i>`, which trains the projections
    for routing. Nothing else trains these, and they train nothing else.
    """

    state_type, layer_type, layer_state = RoutingState, RoutedLayer, RoutedLayerState
    attention_kinds = ("routed", "memory", "segment")
    resizable = ("memory_size", "window")
    config: RoutingTransformerConfig

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters of the routers, which only their losses train."""
        return [each for layer in self.layers if layer.router is not None for each in layer.router.parameters()]

    def initial_state(self, batch_size: int) -> RoutingState:
        """Zero slots, none of which belongs to an episode, at offset 0."""
        zeros, size = next(self.parameters()).new_zeros, self.config.model_size
        sizes = [layer.sizes for layer in self.layers]
        return RoutingState(
            segment=tuple(zeros(batch_size, n_s, size) for n_s, *_ in sizes),
            memory=tuple(zeros(batch_size, n_m, size) for _, n_m, *_ in sizes),
            routed=tuple(zeros(batch_size, *rings, size) for _, _, *rings in sizes),
            routed_age=tuple(1 + zeros(batch_size, *rings, dtype=torch.int64) for _, _, *rings in sizes),
            age=zeros(batch_size, dtype=torch.int64),
            offset=0,
        )

    def losses(self, slots: list[RoutedLayerState]) -> dict[str, Mean]:
        """The losses of each router, over all steps of the call."""
        return {
            f"{name}/layer_{index}": Mean(
                *(torch.stack(each).sum(dim=0) for each in zip(*(p[name] for p in part.losses)))
            )
            for index, part in enumerate(slots)
            for name in (part.losses[0] if part.losses else ())
        }

    def slot_ages(self, layer: int, state: RoutingState) -> Tensor:
        """See `Transformer`; a slot holds one step."""
        sizes, routed = self.layers[layer].sizes, state.routed_age[layer].flatten(1)
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=routed.device).expand(len(routed), -1)
        ages = torch.cat([routed, recent], dim=1) + state.offset
        return torch.stack([ages, ages], dim=-1)
