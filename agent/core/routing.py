"""A causal Routing Transformer (Roy et al. 2020) as a recurrent core: what leaves memory is filed by content.

Slots of a layer are [routed | memory | segment]. docs/routing.md explains the semantics, and why they differ from the
paper, whose layer is not causal.

Axes: B batch, T time, S slots, H heads, D features (model_size), R features of a routing vector.
Sizes: n_s segment_size, n_m memory_size, G groups of heads, k clusters of a group, w slots of a cluster (window).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import KVCache
from .config import RoutedSizes, RoutingTransformerConfig
from .contract import Mean, full_precision
from .transformer import SegmentSteps, Transformer, TransformerLayer, additive_mask

TEMPERATURE = 0.3
"""Of the softmax over clusters in the router's loss. At 0.1 few pairs of query and key find a common cluster."""
ELSEWHERE = 0.5
"""Added to the denominator of the router's loss: a slot beyond the visible ones that is in the query's cluster with
this probability. With 0, the loss is small as soon as the right slot is more probable than the other visible ones, even
if its cluster is another."""


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

    losses: for each part of this call, the losses of `Router` by name.
    """

    segment: Tensor
    memory: Tensor
    routed: Tensor
    routed_age: Tensor
    cache: KVCache
    losses: tuple[dict[str, Mean], ...] = ()


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
            centroids = unit(self.centroids.detach())
            return self.vectors(x, projection) @ centroids.transpose(-1, -2)

    def vectors(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """Routing vectors [B, G, S, R] of layer inputs [B, S, D] or, for each group, [B, G, S, D].

        The layer inputs get no gradient, the projection does.
        """
        x = x.detach()
        groups = len(self.centroids)
        if x.dim() == 4:
            # Each group projects slots of its own, with its rows of the weight.
            weight = projection.weight.unflatten(0, (groups, -1))  # [G, R, D]
            return unit(x @ weight.mT)
        projected = projection(x)  # [B, S, G R]
        by_group = projected.unflatten(-1, (groups, -1))  # [B, S, G, R]
        return unit(by_group.transpose(1, 2))

    @torch.no_grad()
    def nearest(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """The cluster [B, G, S] int64 of layer inputs [B, S, D]."""
        return self(x, projection).argmax(dim=-1)

    def centroid_loss(self, x: Tensor) -> Mean:
        """k-means of the vectors of queries and keys of x [B, T, D]; sums and counts are [G k], one of each centroid.

        Its value is the sum over centroids of half the mean squared distance to the vectors that are nearest to each.
        So a step of gradient descent with rate r moves a centroid to (1 - r) centroid + r mean: the paper's moving
        average, which is a weight here. A centroid without vectors stays.
        """
        groups, clusters, _ = self.centroids.shape
        with full_precision(x), torch.no_grad():
            # The vectors of all queries and keys, and the cluster that each belongs to.
            of_queries = self.vectors(x, self.query)
            of_keys = self.vectors(x, self.key)
            vectors = torch.cat([of_queries, of_keys], dim=2)  # [B, G, 2 T, R]
            centroids = unit(self.centroids)
            cosines = vectors @ centroids.transpose(-1, -2)  # [B, G, 2 T, k]
            nearest = cosines.argmax(dim=-1)
            member = one_hot(nearest, clusters)  # [B, G, 2 T, k]

            # Number and sum of the vectors of each cluster.
            count = member.sum(dim=(0, 2))  # [G, k]
            sums = torch.einsum("bgsk,bgsr->gkr", member.to(vectors), vectors)

        # Over the vectors x of a cluster, the sum of |c - x|^2 is count |c|^2 - 2 c sum(x) + count, for |x| = 1.
        with full_precision(x):
            square = self.centroids.square().sum(dim=-1)
            products = self.centroids * sums
            product = products.sum(dim=-1)
            distances = count * (square + 1) - 2 * product

        # This loss is a sum over centroids, and `Mean` averages its entries: each is multiplied by their number.
        num_centroids = groups * clusters
        total = distances.flatten() / 2 * num_centroids
        return Mean(total, count.flatten())

    def loss(self, x: Tensor, routed: Tensor, recent: Tensor, weights: Tensor, mask: Tensor) -> Mean:
        """Cross-entropy between attention and the choice of a slot by cluster: one sum and one count.

        With P the softmax over clusters, a the squared attention, and s' all slots that the query q sees:

            p(q, s) = sum over clusters c of P(c | q) P(c | s)
            loss    = -sum over s of a(q, s) log(p(q, s) / (ELSEWHERE + sum over s' of p(q, s')))

        So queries and the keys that they attend to come to one cluster, and other keys leave it. The hard choice of a
        cluster has no gradient; this has, because local slots are attended to in whatever cluster they are.

        Args:
            x: [B, T, D], the inputs of the queries.
            routed: [B, G, k w, D], those of the routed slots of each group.
            recent: [B, S, D], those of the slots of memory and segment.
            weights: [B, G, T, k w + S], squared attention to the slots, a mean over the heads of each group. Squares,
                because most queries attend to nothing in particular.
            mask: [B, G, T, k w + S], 0 where a step sees a slot, -infinity elsewhere.
        """
        # The probabilities of each cluster, [B, G, T, k] and [B, G, k w + S, k].
        query_cosines = self(x, self.query)
        routed_cosines = self(routed, self.key)
        recent_cosines = self(recent, self.key)
        key_cosines = torch.cat([routed_cosines, recent_cosines], dim=2)
        query = (query_cosines / TEMPERATURE).softmax(dim=-1)
        key = (key_cosines / TEMPERATURE).softmax(dim=-1)

        with full_precision(x):
            # The probability that a query and a slot are in one cluster, [B, G, T, k w + S].
            together = query @ key.transpose(-1, -2)
            log_together = together.clamp(min=1e-9).log()

            # Its sum over the slots that the query sees. ELSEWHERE stands for all that it does not see.
            masked = log_together + mask.to(log_together)
            log_seen = masked.logsumexp(dim=-1, keepdim=True)
            log_every = (log_seen.exp() + ELSEWHERE).log()

            # The cross-entropy of the quotient, with the attention as its target.
            weights = weights.to(log_together)
            cross_entropy = weights * (log_every - log_together)
            total = cross_entropy.sum()
        num_queries = weights[..., 0].numel()
        count = weights.new_full((1,), num_queries)
        return Mean(total[None], count)


def one_hot(index: Tensor, size: int) -> Tensor:
    """Whether an index [...] is 0, 1, ..., size - 1: [..., size] bool."""
    return index[..., None] == torch.arange(size, device=index.device)


def unit(vectors: Tensor) -> Tensor:
    """Layer norm without scale and bias, then divided by the root of the size: of length 1 (section 4.1)."""
    size = vectors.shape[-1]
    normed = F.layer_norm(vectors, (size,))
    return normed * size**-0.5


class RoutedLayer(TransformerLayer[RoutedLayerState]):
    """A transformer's layer, and the filing of its memories; without a window it is one of Transformer-XL."""

    config: RoutingTransformerConfig
    sizes: RoutedSizes

    def __init__(self, config: RoutingTransformerConfig, sizes: RoutedSizes) -> None:
        super().__init__(config, sizes, rings=max(1, sizes.clusters))
        self.router: Router | None = None
        if sizes.window:
            self.router = Router(config.model_size, config.num_heads, sizes.groups, sizes.clusters)

    @property
    def num_filed(self) -> int:
        """Number of routed slots of a group, k w."""
        return self.sizes.clusters * self.sizes.window

    @property
    def heads_of_group(self) -> int:
        """Number of heads that route alike."""
        return self.config.num_heads // self.sizes.groups

    def make_cache(self, offset: int, encoding: Tensor, older: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """See `TransformerLayer`; the older slots are the routed ones [B, G, k, w, D]."""
        filled_segment = segment[:, :offset]
        recent = torch.cat([memory, filled_segment], dim=1)
        recent_keys, recent_values = self.project(recent)
        routed = older.flatten(1, 3)  # [B, G k w, D]
        routed_keys, routed_values = self.project(routed)

        # Room for the rest of the segment.
        empty = self.sizes.segment - offset

        def join(routed: Tensor, recent: Tensor) -> Tensor:
            own = self._own_group(routed)
            filled = torch.cat([own, recent], dim=2)
            return F.pad(filled, (0, 0, 0, empty))

        keys = join(routed_keys, recent_keys)
        values = join(routed_values, recent_values)

        # One ring stands before memory: see `RelativeAttention`.
        sizes = self.sizes
        num_distances = sizes.window + sizes.memory + sizes.segment
        newest = encoding[-num_distances:]
        near = self.attention.project_positions(newest)
        return KVCache(keys, values, near, far=None, far_index=None)

    def _own_group(self, projected: Tensor) -> Tensor:
        """Of keys or values [B, H, G k w, K], those of each head's own group: [B, H, k w, K]."""
        groups = self.sizes.groups
        heads_by_group = projected.unflatten(1, (groups, -1))  # [B, G, H / G, G k w, K]
        slots_by_group = heads_by_group.unflatten(3, (groups, self.num_filed))  # [B, G, H / G, G, k w, K]
        own = slots_by_group.diagonal(dim1=1, dim2=3)  # [B, H / G, k w, K, G]
        groups_first = own.movedim(-1, 1)  # [B, G, H / G, k w, K]
        return groups_first.flatten(1, 2)

    def attention_mask(self, x: Tensor, state: RoutedLayerState, common: Tensor, steps: SegmentSteps) -> Tensor:
        """A step sees the slots of its episode in the cluster that is nearest to it."""
        if self.router is None:
            return common
        # The steps' clusters, and the slots of the episode that the state remembers.
        cluster = self.router.nearest(x, self.router.query)
        in_cluster = one_hot(cluster, self.sizes.clusters)  # [B, G, T, k]
        slot_age = state.routed_age + steps.offset  # before the first of the steps
        episode_age = steps.age[:, None, None, None]
        of_episode = slot_age <= episode_age  # [B, G, k, w]

        # A step sees a slot if both are true, and no reset is between them.
        both = in_cluster[..., None] & of_episode[:, :, None]  # [B, G, T, k, w]
        in_state_episode = steps.in_state_episode[:, None, :, None]
        seen = both.flatten(3) & in_state_episode  # [B, G, T, k w]
        if self.sizes.groups > 1:
            seen = seen.repeat_interleave(self.heads_of_group, dim=1)  # [B, H, T, k w]

        # The other slots are seen as in any transformer, alike by all heads.
        routed = additive_mask(seen, like=common)
        num_masks = seen.shape[1]
        recent = common.expand(-1, num_masks, -1, -1)
        return torch.cat([routed, recent], dim=-1)

    def hide(self, mask: Tensor, hidden: Tensor, steps: SegmentSteps) -> Tensor:
        """See `TransformerLayer`; heads see the routed slots of their own group."""
        if self.router is None:
            return super().hide(mask, hidden, steps)
        # The state has the routed slots of all groups, the mask of each head those of its own.
        groups = self.sizes.groups
        num_routed = groups * self.num_filed
        routed = hidden[:, :num_routed].unflatten(1, (groups, self.num_filed))  # [B, G, k w]
        if groups > 1:
            routed = routed.repeat_interleave(self.heads_of_group, dim=1)  # [B, H, k w]

        # The slots of memory and segment before the steps are hidden from all heads alike.
        num_steps = steps.visible.shape[1]
        num_recent = mask.shape[-1] - self.num_filed - num_steps
        recent = hidden[:, num_routed:]
        num_masks = routed.shape[1]
        before = recent[:, None, :num_recent].expand(-1, num_masks, -1)

        # The steps themselves stay.
        slots = torch.cat([routed, before], dim=-1)
        padded = F.pad(slots, (0, num_steps))  # [B, 1 or H, slots before the steps and the steps]
        return mask.masked_fill(padded[:, :, None], -torch.inf)

    def needs_weights(self, state: RoutedLayerState) -> bool:
        """The router learns from the attention."""
        return self.router is not None and torch.is_grad_enabled()

    def observe(self, x: Tensor, state: RoutedLayerState, weights: Tensor, mask: Tensor) -> RoutedLayerState:
        """Adds the losses of the router, whose teacher is the attention."""
        assert self.router is not None
        groups = self.sizes.groups

        # The slots that the steps could see: not those of the segment after them.
        routed = state.routed.flatten(2, 3)  # [B, G, k w, D]
        num_recent = mask.shape[-1] - self.num_filed
        recent = torch.cat([state.memory, state.segment], dim=1)
        recent = recent[:, :num_recent]

        # The heads of a group share a mask; if there is one group, all heads do.
        heads_of_mask = max(1, mask.shape[1] // groups)
        mask = mask[:, ::heads_of_mask]

        # A mean over the heads of each group, [B, G, T, S].
        squares = weights.detach().square()
        by_group = squares.unflatten(1, (groups, -1))
        weights = by_group.mean(dim=2)
        losses = {
            "routing": self.router.centroid_loss(x),
            "router": self.router.loss(x, routed, recent, weights, mask),
        }
        return state._replace(losses=(*state.losses, losses))

    def slot_weights(self, weights: Tensor) -> Tensor:
        """See `TransformerLayer`: heads see the routed slots of their group, the state has those of all groups."""
        if self.sizes.groups == 1 or self.router is None:
            return weights
        routed = weights[..., : self.num_filed]
        recent = weights[..., self.num_filed :]
        # 1 for the group of a head, 0 for the others.
        own = torch.eye(self.sizes.groups, dtype=weights.dtype, device=weights.device)
        own_of_head = own.repeat_interleave(self.heads_of_group, dim=0)  # [H, G]
        own_of_head = own_of_head[:, None, :, None]
        by_group = routed[:, :, :, None] * own_of_head  # [B, H, T, G, k w]
        all_routed = by_group.flatten(3)
        return torch.cat([all_routed, recent], dim=-1)

    def update_memory(self, state: RoutedLayerState, age: Tensor, keep_cache: bool) -> RoutedLayerState:
        """A full segment enters memory; the memories that no longer fit are filed, each in its key's cluster."""
        n_s = self.sizes.segment
        both = torch.cat([state.memory, state.segment], dim=1)
        evicted = both[:, :n_s]

        if self.router is None:
            # Nothing is filed, because there are no routed slots, k w = 0: only memory moves.
            source = state.routed_age.flatten(2)  # no places, [B, G, 0]
        else:
            cluster = self.router.nearest(evicted, self.router.key)
            source, routed_age = self._file(cluster, state.routed_age)

            # Each group has the choice of what it has filed and of the evicted steps.
            filed = state.routed.flatten(2, 3)  # [B, G, k w, D]
            new = evicted[:, None].expand(-1, self.sizes.groups, -1, -1)  # [B, G, n_s, D]
            pool = torch.cat([filed, new], dim=2)
            taken = take(pool, source)
            routed = taken.unflatten(2, (self.sizes.clusters, self.sizes.window))
            state = state._replace(routed=routed, routed_age=routed_age)

        if keep_cache:
            cache = self._updated_cache(state.cache, source)
            state = state._replace(cache=cache)
        memory = both[:, n_s:].contiguous()  # a view would keep the evicted steps
        empty_segment = torch.zeros_like(state.segment)
        return state._replace(segment=empty_segment, memory=memory)

    def _updated_cache(self, cache: KVCache, source: Tensor) -> KVCache:
        """The cache after a full segment entered memory; for `source` see `_file`. Nothing is projected anew."""
        n_s = self.sizes.segment
        by_head = source.repeat_interleave(self.heads_of_group, dim=1)  # [B, H, k w]
        first_kept = self.num_filed + n_s
        end = first_kept + self.sizes.memory

        def update(old: Tensor) -> Tensor:
            routed = take(old, by_head)
            memory = old[:, :, first_kept:end]
            filled = torch.cat([routed, memory], dim=2)
            return F.pad(filled, (0, 0, 0, n_s))  # an empty segment follows

        keys = update(cache.keys)
        values = update(cache.values)
        return cache.replaced(keys, values)

    def _file(self, cluster: Tensor, ages: Tensor) -> tuple[Tensor, Tensor]:
        """Appends n_s steps, of the clusters [B, G, n_s], to the rings, and drops the oldest members.

        Returns the places [B, G, k w] of what the rings hold then in [rings | steps], and its ages [B, G, k, w].
        """
        n_s, n_m, _, clusters, window = self.sizes
        batch, groups = ages.shape[:2]

        # The steps of each cluster: first its members, oldest first, then the other steps.
        numbers = torch.arange(clusters, device=ages.device)
        numbers = numbers[:, None]  # [k, 1]
        member = cluster[:, :, None] == numbers  # [B, G, k, n_s]
        is_other = member.logical_not().to(torch.uint8)
        members_first = is_other.argsort(dim=-1, stable=True)

        # A ring holds the last w of the list of its old and its new members. With w = 3, old members a b c and new ones
        # x y, the list is a b c x y, and the last three are in its places 2, 3 and 4: those below w are old members.
        num_new = member.sum(dim=-1, keepdim=True)
        place_in_ring = torch.arange(window, device=ages.device)
        place_in_list = num_new + place_in_ring  # [B, G, k, w]
        is_old = place_in_list < window

        # Old members are found in the cluster's ring, new ones behind all rings.
        first_of_ring = window * numbers
        old = place_in_list + first_of_ring
        index_of_new = (place_in_list - window).clamp(min=0, max=n_s - 1)
        step_of_new = members_first.gather(-1, index_of_new)
        new = step_of_new + clusters * window
        source = torch.where(is_old, old, new)
        source = source.flatten(2)  # [B, G, k w]

        # Ages at the first step of the next segment.
        ages_of_old = ages.flatten(2) + n_s
        ages_of_new = torch.arange(n_m + n_s, n_m, -1, device=ages.device)
        ages_of_new = ages_of_new.expand(batch, groups, -1)
        all_ages = torch.cat([ages_of_old, ages_of_new], dim=-1)
        new_ages = all_ages.gather(-1, source)
        return source, new_ages.view_as(ages)


def take(pool: Tensor, index: Tensor) -> Tensor:
    """Rows of `pool` [B, N, S, D] at `index` [B, N, J]: [B, N, J, D]. Copies whole rows, unlike a gather."""
    batch, lists, slots, size = pool.shape
    # All lists are laid end to end, so an index counts from the start of its list.
    list_numbers = torch.arange(batch * lists, device=index.device)
    list_numbers = list_numbers.view(batch, lists, 1)
    flat_index = index + list_numbers * slots
    rows = pool.flatten(0, 2)  # [B N S, D]
    taken = rows.index_select(0, flat_index.flatten())
    return taken.view(*index.shape, size)


class RoutingTransformer(Transformer[RoutingState, RoutedLayerState]):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    The losses are `routing/layer_<i>`, which trains the centroids, and `router/layer_<i>`, which trains the projections
    for routing. Nothing else trains these, and they train nothing else.
    """

    state_type = RoutingState
    attention_kinds = ("routed", "memory", "segment")
    resizable = ("memory_size", "window")
    config: RoutingTransformerConfig
    layers: Sequence[RoutedLayer]

    def __init__(self, config: RoutingTransformerConfig) -> None:
        layers = [RoutedLayer(config, sizes) for sizes in config.layer_sizes]
        super().__init__(config, layers)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters of the routers, which only their losses train."""
        parameters: list[nn.Parameter] = []
        for layer in self.layers:
            if layer.router is not None:
                parameters += layer.router.parameters()
        return parameters

    def initial_state(self, batch_size: int) -> RoutingState:
        """Zero slots, none of which belongs to an episode, at offset 0."""
        zeros = next(self.parameters()).new_zeros
        model_size = self.config.model_size
        segment: list[Tensor] = []
        memory: list[Tensor] = []
        routed: list[Tensor] = []
        routed_age: list[Tensor] = []
        for layer in self.layers:
            sizes = layer.sizes
            rings = (batch_size, sizes.groups, sizes.clusters, sizes.window)
            segment.append(zeros(batch_size, sizes.segment, model_size))
            memory.append(zeros(batch_size, sizes.memory, model_size))
            routed.append(zeros(*rings, model_size))
            # Older than the row's episode, whose age is 0.
            routed_age.append(1 + zeros(rings, dtype=torch.int64))
        return RoutingState(
            segment=tuple(segment),
            memory=tuple(memory),
            routed=tuple(routed),
            routed_age=tuple(routed_age),
            age=zeros(batch_size, dtype=torch.int64),
            offset=0,
        )

    def older_slots(self, state: RoutingState) -> tuple[Tensor, ...]:
        """The routed slots."""
        return state.routed

    def split(self, state: RoutingState) -> list[RoutedLayerState]:
        """See `Transformer`."""
        assert state.cache is not None
        layer_states = []
        for index in range(len(self.layers)):
            layer_states.append(
                RoutedLayerState(
                    segment=state.segment[index],
                    memory=state.memory[index],
                    routed=state.routed[index],
                    routed_age=state.routed_age[index],
                    cache=state.cache[index],
                )
            )
        return layer_states

    def join(self, layer_states: list[RoutedLayerState], age: Tensor, offset: int, cached: bool) -> RoutingState:
        """See `Transformer`."""
        cache = None
        if cached:
            cache = tuple(layer.cache for layer in layer_states)
        return RoutingState(
            segment=tuple(layer.segment for layer in layer_states),
            memory=tuple(layer.memory for layer in layer_states),
            routed=tuple(layer.routed for layer in layer_states),
            routed_age=tuple(layer.routed_age for layer in layer_states),
            age=age,
            offset=offset,
            cache=cache,
        )

    def losses(self, layer_states: list[RoutedLayerState]) -> dict[str, Mean]:
        """The losses of each router, over all steps of the call."""
        losses = {}
        for index, layer in enumerate(layer_states):
            if not layer.losses:
                continue
            for name in ("routing", "router"):
                # A sum over the parts of the call, [N] each.
                totals = [part[name].total for part in layer.losses]
                counts = [part[name].count for part in layer.losses]
                total = torch.stack(totals).sum(dim=0)
                count = torch.stack(counts).sum(dim=0)
                losses[f"{name}/layer_{index}"] = Mean(total, count)
        return losses

    def slot_ages(self, layer: int, state: RoutingState) -> Tensor:
        """See `Transformer`; a slot holds one step."""
        sizes = self.layers[layer].sizes
        routed = state.routed_age[layer].flatten(1)  # [B, G k w]
        rows = routed.shape[0]
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=routed.device)
        recent = recent.expand(rows, -1)

        # Ages at the first step of the segment, then at the next step.
        ages_at_start = torch.cat([routed, recent], dim=1)
        ages = ages_at_start + state.offset
        return torch.stack([ages, ages], dim=-1)
