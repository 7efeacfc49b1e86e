"""The published layer of the Routing Transformer (Roy et al. 2020, Algorithm 1), and what its leak is worth.

    python -m benchmarks.balanced bits           (independent fair bits: no causal model has less than 1 bit)
    python -m benchmarks.balanced text --steps 256 --window 32 --updates 500 --rows 8
    python -m benchmarks.balanced images --steps 192 --window 48 --rows 8 --routing 2 1 4 1 2 2 4 2

Each centroid takes the `window` steps of the whole sequence that are nearest to it. So later steps decide which earlier
ones are members, and change their outputs, although the attention itself is causal. The likelihood as published, of all
steps at once (teacher-forced), is therefore not that of the model which could be sampled, step by step from prefixes.
Both are measured here, on sequences that were not trained on. The causal core is `--core routing`.

Axes: B batch, H heads, n steps, D features, R = D / H, k clusters, w window.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Core, CoreOutput, State
from agent.core.routing import unit
from benchmarks.common import require_least, run
from sequences.kinds import PRESETS
from sequences.model import SequenceModel
from sequences.trainer import open_data

REFUSAL = (
    "the published routing layer can neither act nor sample: which steps are members of a cluster is decided with "
    "later steps in view, so it has no state; expected whole sequences, or the causal core (--core routing)"
)


@dataclass(frozen=True)
class BalancedConfig:
    """A network of whole sequences: local heads, and routing heads in the top layers (section 4.1)."""

    model_size: int = 32
    """Features (D)."""
    num_layers: int = 2
    """Layers."""
    num_heads: int = 4
    """Heads of each layer (H)."""
    routing_heads: int = 2
    """Heads that route, in layers that do; the others are local."""
    routing_layers: int = 1
    """Layers, the top ones, with routing heads."""
    clusters: int = 8
    """Centroids of a routing head (k)."""
    window: int = 8
    """Steps that each centroid takes (w)."""
    local: int = 8
    """Steps that a local head sees, its own included."""
    longest: int = 64
    """Most steps of a sequence."""
    decay: float = 0.99
    """Lambda of the centroids' moving average (0.999 in the paper, for longer trainings)."""


def balanced_weights(vectors: Tensor, centroids: Tensor, window: int) -> Tensor:
    """The weights [B, H, n, n] of Algorithm 1 with left-to-right mask, lines 12 to 23, scattered to all pairs of steps.

    Two details are choices, because the text leaves them open: scores are divided by sqrt(R), and a step that is in
    several clusters gets the mean of its outputs. A step that is in none gets zeros. Its own key is seen. The scatter
    is for clarity: it costs n^2, which the paper's layer does not.

    Args:
        vectors: [B, H, n, R] queries, which are the keys as well (line 5), after `unit`.
        centroids: [H, k, R].
        window: w; all n steps if there are fewer.
    """
    batch, heads, steps, size = vectors.shape
    clusters = centroids.shape[1]
    window = min(window, steps)

    # The members of each cluster. Sorted: only then is the triangular mask of line 22 one of time.
    nearest = (centroids @ vectors.mT).topk(window, dim=-1).indices
    index = nearest.sort(dim=-1).values  # [B, H, k, w]
    of_features = index.flatten(2)[..., None].expand(-1, -1, -1, size)
    members = vectors.gather(2, of_features).unflatten(2, (clusters, window))  # [B, H, k, w, R]

    # Attention within a cluster. Vectors of `unit` have length 1, those of the paper's layer norm sqrt(R).
    scores = (members @ members.mT) * size**0.5
    later = torch.ones(window, window, dtype=torch.bool, device=index.device).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)  # [B, H, k, w, w]

    # Back to all pairs of steps, summed over the clusters.
    query = index[..., :, None]
    key = index[..., None, :]
    pairs = (query * steps + key).flatten(2)
    total = vectors.new_zeros(batch, heads, steps * steps).scatter_add(2, pairs, weights.flatten(2))
    total = total.unflatten(2, (steps, steps))
    memberships = total.sum(dim=-1, keepdim=True)  # the number of clusters that a step is in
    return total / memberships.clamp(min=1)


class BalancedLayer(nn.Module):
    """Pre-norm attention, of which the last `routing` heads route, and an MLP.

    `weights` are those of the last call, [B, H, n, n].
    """

    centroids: Tensor
    weights: Tensor

    def __init__(self, config: BalancedConfig, routing: int) -> None:
        super().__init__()
        self.config = config
        self.routing = routing
        size = config.model_size
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.project = nn.Linear(size, 3 * size)
        self.merge = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.register_buffer("centroids", unit(torch.randn(routing, config.clusters, size // config.num_heads)))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.config.num_heads
        local = heads - self.routing
        steps = x.shape[1]

        def by_head(part: Tensor) -> Tensor:
            """[B, n, D] as [B, H, n, R]."""
            return part.unflatten(-1, (heads, -1)).transpose(1, 2)

        query, key, value = self.project(self.norms[0](x)).chunk(3, dim=-1)
        query = by_head(query)
        key = by_head(key)
        value = by_head(value)

        # Local heads: a band along the diagonal.
        every_pair = torch.ones(steps, steps, dtype=torch.bool, device=x.device)
        near = every_pair.tril().triu(1 - self.config.local)
        scores = query[:, :local] @ key[:, :local].mT * key.shape[-1] ** -0.5
        weights = scores.masked_fill(~near, -torch.inf).softmax(dim=-1)

        # Routing heads, whose queries are their keys as well.
        if self.routing:
            vectors = unit(query[:, local:])
            routed = balanced_weights(vectors, self.centroids, self.config.window)
            weights = torch.cat([weights, routed], dim=1)
            if self.training:
                self._move_centroids(vectors.detach())
        self.weights = weights.detach()

        attended = (weights @ value).transpose(1, 2).flatten(2)
        x = x + self.merge(attended)
        return x + self.mlp(self.norms[1](x))

    def _move_centroids(self, vectors: Tensor) -> None:
        """The moving average of the vectors that are nearest to each centroid: means, where eq. 9 has sums."""
        clusters = torch.arange(self.config.clusters, device=vectors.device)
        nearest = (self.centroids @ vectors.mT).argmax(dim=2)  # [B, H, n]
        member = (nearest[:, :, None] == clusters[:, None]).to(vectors)  # [B, H, k, n]
        count = member.sum(dim=(0, 3))[..., None]
        means = torch.einsum("bhkn,bhnr->hkr", member, vectors) / count.clamp(min=1)
        target = torch.where(count > 0, means, self.centroids)
        self.centroids.lerp_(target, 1 - self.config.decay)


class BalancedTransformer(Core):
    """The published network as a core of whole sequences: its state is None, and it refuses to make one."""

    def __init__(self, config: BalancedConfig) -> None:
        super().__init__()
        self.config = config
        self.positions = nn.Parameter(0.1 * torch.randn(config.longest, config.model_size))
        first = config.num_layers - config.routing_layers
        layers = nn.ModuleList()
        for layer in range(config.num_layers):
            routing = config.routing_heads if layer >= first else 0
            layers.append(BalancedLayer(config, routing))
        self.layers: Sequence[BalancedLayer] = layers  # type: ignore[assignment]
        self.norm = nn.LayerNorm(config.model_size)

    def initial_state(self, batch_size: int) -> State:
        """Raises a ValueError: there is no state to act or sample with."""
        raise ValueError(REFUSAL)

    def forward(self, inputs: Tensor, reset: Tensor, state: State, return_attention: bool = False) -> CoreOutput:
        """Features [B, n, D] of whole sequences. Raises a ValueError for a state, or an episode start inside one."""
        if state is not None or reset[:, 1:].any():
            raise ValueError(REFUSAL)
        x = inputs + self.positions[: inputs.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return CoreOutput(self.norm(x), None, {})


def teacher_forced(model: SequenceModel, tokens: Tensor) -> Tensor:
    """Negative log-likelihoods [B, n] of tokens [B, n + 1] after the first, of all steps at once: as published."""
    inputs = tokens[:, :-1]
    nll = model(inputs, torch.zeros_like(inputs, dtype=torch.bool), None, tokens[:, 1:]).nll
    assert nll is not None
    return nll


def prefix_only(model: SequenceModel, tokens: Tensor) -> Tensor:
    """The same, each from its own prefix: n calls. These are the probabilities that sampling would draw from."""
    by_step = []
    for end in range(2, tokens.shape[1] + 1):
        nll = teacher_forced(model, tokens[:, :end])
        by_step.append(nll[:, -1])
    return torch.stack(by_step, dim=1)


def divergence(first: Tensor, second: Tensor) -> float:
    """Jensen-Shannon divergence in nats (Table 6) of two heads' weights [B, n, n].

    The mean over all steps that both heads give weights to, NaN if there are none; at most ln 2.
    """
    both = (first.sum(dim=-1) > 0) & (second.sum(dim=-1) > 0)
    p = first[both]
    q = second[both]
    mean_of_entropies = (_entropy(p) + _entropy(q)) / 2
    return float((_entropy((p + q) / 2) - mean_of_entropies).mean())


def _entropy(weights: Tensor) -> Tensor:
    """In nats, of each row."""
    return torch.special.entr(weights).sum(dim=-1)


def divergences(layer: BalancedLayer) -> dict[str, float | None]:
    """The mean divergence of two heads of the last call, by their kinds; None if it is not known of some of them."""
    found: dict[str, list[float]] = defaultdict(list)
    kinds = ["local"] * (layer.config.num_heads - layer.routing) + ["routing"] * layer.routing
    for first, second in itertools.combinations(range(len(kinds)), 2):
        apart = divergence(layer.weights[:, first], layer.weights[:, second])
        found[f"{kinds[first]}-{kinds[second]}"].append(apart)
    means: dict[str, float | None] = {}
    for name, values in found.items():
        mean = sum(values) / len(values)
        means[name] = None if math.isnan(mean) else round(mean, 3)
    return means


def train(model: SequenceModel, draw: Callable[[int], Tensor], updates: int, rows: int, learning_rate: float) -> None:
    """Adam, with a tenth of linear warm-up and a cosine to zero, on `rows` sequences from `draw` an update."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    model.train()
    for update in range(updates):
        warm_up = 10 * (update + 1) / updates
        cosine = (1 + math.cos(math.pi * update / updates)) / 2
        optimizer.param_groups[0]["lr"] = learning_rate * min(warm_up, cosine)
        loss = teacher_forced(model, draw(rows)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def sequences(data: str, split: str, steps: int, generator: torch.Generator) -> tuple[Callable[[int], Tensor], int]:
    """A function that draws so many sequences [rows, steps + 1] int64, and the size of the vocabulary.

    Those of a corpus begin at multiples of the number of steps, after a separator 0 in place of what came before. Of
    images, one is a sequence. Raises a ValueError if no image has so many bytes, or if the corpus has fewer.
    """
    if data == "bits":

        def draw_bits(rows: int) -> Tensor:
            return torch.randint(2, (rows, steps + 1), generator=generator)

        return draw_bits, 2

    config = PRESETS[data]("cpu", "lstm")
    if data == "images":
        side = math.isqrt(steps // 3)
        if 3 * side**2 != steps:
            raise ValueError(f"steps: expected 3 n^2, the bytes of an image of n x n pixels, got {steps}")
        config = replace(config, corpus=replace(config.corpus, height=side, width=side))

    found = open_data(config)
    vocabulary = found.make_model().vocabulary
    tokens = found.splits[split].tokens
    tokens = tokens[tokens < vocabulary]  # without the starts of images, which are given
    count = len(tokens) // steps
    if count == 0:
        raise ValueError(f"steps: expected at most {len(tokens)}, the bytes of the split {split}, got {steps}")
    whole = torch.from_numpy(tokens[: count * steps].astype("int64")).view(count, steps)

    def draw(rows: int) -> Tensor:
        drawn = torch.randint(count, (rows,), generator=generator)
        return F.pad(whole[drawn], (1, 0))

    return draw, vocabulary


def bits_by_sequence(
    measure: Callable[[SequenceModel, Tensor], Tensor], model: SequenceModel, parts: Sequence[Tensor]
) -> Tensor:
    """Bits a token of each sequence of some batches [rows, n + 1], by one of the two likelihoods."""
    nats = torch.cat([measure(model, part).mean(dim=1) for part in parts])
    return nats / math.log(2)


def mean_and_error(bits: Tensor) -> dict[str, float]:
    """The mean over the sequences, and its standard error."""
    error = bits.std() / len(bits) ** 0.5
    return {"bits": round(float(bits.mean()), 5), "error": round(float(error), 5)}


@dataclass
class Options:
    data: tyro.conf.Positional[Literal["bits", "text", "speech", "images"]] = "bits"
    """Fair bits, or the corpus of a preset `cpu`; of images, whole ones."""
    steps: int = 32
    """Steps of a sequence."""
    updates: int = 400
    """Gradient steps of each variant."""
    rows: int = 64
    """Sequences of an update."""
    measured: int = 2_048
    """Sequences on which both likelihoods are measured."""
    learning_rate: float = 3e-3
    """Adam's, after warm-up."""
    window: int = 8
    """Steps that a centroid takes, and that a local head sees."""
    routing: tuple[tuple[int, int], ...] = ((2, 1), (4, 2))
    """Variants with routing: how many heads route, in how many layers, from the top."""
    seed: int = 0
    """Of weights and sequences."""
    network: BalancedConfig = BalancedConfig()  # frozen
    """Sizes; `window`, `local`, `longest` and the numbers of routing heads and layers are set by the variants."""


def main(options: Options) -> dict[str, Any]:
    """Trains a full and a local network, and those with routing heads.

    Returns both likelihoods in bits a token, and the divergence of heads by layer.
    """
    require_least("rows", options.rows, 1)
    require_least("measured", options.measured, 2)  # one sequence has no standard error
    base = replace(options.network, window=options.window, local=options.window, longest=options.steps)
    variants = {
        "full": replace(base, routing_heads=0, local=options.steps),
        "local": replace(base, routing_heads=0),
    }
    for heads, layers in options.routing:
        name = f"{heads} of {base.num_heads} heads route, in {layers} of {base.num_layers} layers"
        variants[name] = replace(base, routing_heads=heads, routing_layers=layers)

    # Each variant draws the same sequences, and those that are measured are drawn with another seed.
    generator = torch.Generator().manual_seed(options.seed + 10**6)
    held_out, _ = sequences(options.data, "test", options.steps, generator)
    tokens = torch.cat([held_out(1) for _ in range(options.measured)])
    parts = tokens.split(options.rows)

    found: dict[str, Any] = {}
    for name, config in variants.items():
        generator = torch.Generator().manual_seed(options.seed)
        draw, vocabulary = sequences(options.data, "train", options.steps, generator)
        torch.manual_seed(options.seed)
        core = BalancedTransformer(config)
        model = SequenceModel(core, vocabulary, tied=False)
        begin = time.process_time()
        train(model, draw, options.updates, options.rows, options.learning_rate)
        seconds = time.process_time() - begin
        with torch.no_grad():
            teacher_forced(model, parts[0])  # for the layers' weights
            apart = [divergences(layer) for layer in core.layers]
            published = bits_by_sequence(teacher_forced, model, parts)
            sampled = bits_by_sequence(prefix_only, model, parts)
        found[name] = {
            "cpu_seconds": round(seconds, 1),
            "divergence_by_layer": apart,
            "teacher_forced": mean_and_error(published),
            "prefix_only": mean_and_error(sampled),
            "difference": mean_and_error(sampled - published),  # leak and mismatch together
        }
    return {"data": options.data, "steps": options.steps, "updates": options.updates, "variants": found}


if __name__ == "__main__":
    run(main, Options)
