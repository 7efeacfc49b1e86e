"""Language models of any discrete sequence, text, quantized sound or pixels: embedding, recurrent core, softmax.

Large vocabularies have the adaptive input of Baevski and Auli (2019) and the adaptive softmax of Grave et al. (2017).

Axes: B batch, T time, V vocabulary, D features (model_size).
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Core, Mean, State

IGNORE = -1
"""A target without loss."""


class SequenceOutput(NamedTuple):
    """The output for B rows of T tokens. `state`, `losses` and `attention` are those of `agent.core.CoreOutput`.

    nll: [B, T] negative log-likelihood of the targets in nats, 0 for ignored ones; None without targets.
    log_probs: [B, T, V] log-probabilities of the next token; None with targets.
    """

    nll: Tensor | None
    log_probs: Tensor | None
    state: State
    losses: dict[str, Mean]
    attention: tuple[Tensor, ...] | None


class TokenTable(nn.Module):
    """One vector for each token. After each cut-off vectors are narrower by `divisor`, and projected to `model_size`.

    With cut-offs, tokens must be sorted by frequency, the most frequent first.
    """

    def __init__(self, vocabulary: int, model_size: int, cutoffs: Sequence[int] = (), divisor: int = 4) -> None:
        super().__init__()
        bounds = (0, *cutoffs, vocabulary)
        if vocabulary < 2 or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"cutoffs: expected ascending numbers between 0 and {vocabulary}, got {tuple(cutoffs)}")
        self.model_size = model_size
        self.bounds = list(pairwise(bounds))  # first token of each cluster, and first token after it
        sizes = [max(1, model_size // divisor**index) for index in range(len(self.bounds))]

        # Scaled and projected vectors have unit variance, and so have the first logits.
        self.vectors = nn.ParameterList()
        for (begin, end), size in zip(self.bounds, sizes):
            self.vectors.append(nn.Parameter(torch.randn(end - begin, size) * size**-0.5))
        self.projections = nn.ParameterList()
        for size in sizes[1:]:
            self.projections.append(nn.Parameter(torch.randn(size, model_size) * model_size**-0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeds tokens [B, T]: [B, T, D]."""
        if len(self.bounds) == 1:
            return F.embedding(tokens, self.vectors[0]) * self.model_size**0.5
        flat = tokens.flatten()
        embedded = self.vectors[0].new_zeros(len(flat), self.model_size)
        for cluster, (begin, end) in enumerate(self.bounds):
            inside = (flat >= begin) & (flat < end)
            index = inside.nonzero().squeeze(1)
            vectors = F.embedding(flat[index] - begin, self.vectors[cluster])
            if cluster:
                vectors = vectors @ self.projections[cluster - 1]
            embedded = embedded.index_copy(0, index, vectors.to(embedded.dtype))
        return embedded.unflatten(0, tokens.shape) * self.model_size**0.5

    def scores(self, features: Tensor, cluster: int) -> Tensor:
        """Products of features [..., D] with the vectors of a cluster: [..., tokens in it]."""
        if cluster:
            features = F.linear(features, self.projections[cluster - 1])
        return F.linear(features, self.vectors[cluster])


class AdaptiveSoftmax(nn.Module):
    """log p(token) = log p(its cluster) + log p(token | cluster), as in Grave et al. (2017).

    The most frequent tokens share a softmax with an entry for each rarer cluster; without cut-offs it is the only one.
    """

    def __init__(self, vocabulary: int, model_size: int, num_clusters: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.clusters = nn.Linear(model_size, num_clusters - 1) if num_clusters > 1 else None

    def _head(self, features: Tensor, table: TokenTable) -> Tensor:
        """Log-probabilities of the most frequent tokens, then of the other clusters."""
        _, end = table.bounds[0]
        logits = table.scores(features, 0) + self.bias[:end]
        if self.clusters is not None:
            logits = torch.cat([logits, self.clusters(features)], dim=-1)
        return _log_softmax(logits)

    def _tail(self, features: Tensor, table: TokenTable, cluster: int) -> Tensor:
        """Log-probabilities of the tokens of a cluster, given the cluster."""
        begin, end = table.bounds[cluster]
        logits = table.scores(features, cluster) + self.bias[begin:end]
        return _log_softmax(logits)

    def log_probs(self, features: Tensor, table: TokenTable) -> Tensor:
        """Log-probabilities [..., V] of every token."""
        num_frequent = table.bounds[0][1]  # tokens of the first cluster
        head = self._head(features, table)
        parts = [head[..., :num_frequent]]
        for cluster in range(1, len(table.bounds)):
            of_cluster = head[..., num_frequent + cluster - 1, None]
            parts.append(of_cluster + self._tail(features, table, cluster))
        return torch.cat(parts, dim=-1)

    def nll(self, features: Tensor, targets: Tensor, table: TokenTable) -> Tensor:
        """Negative log-likelihoods [N] of targets [N], given features [N, D]; tails are computed where needed."""
        num_frequent = table.bounds[0][1]
        head = self._head(features, table)
        # For rarer targets this is another token's, which the loop replaces.
        frequent = targets.clamp(max=num_frequent - 1)
        chosen = head.gather(1, frequent[:, None]).squeeze(1)
        for cluster, (begin, end) in enumerate(table.bounds[1:], start=1):
            # Empty clusters are not skipped: learners that share a batch must have the same gradients.
            index = ((targets >= begin) & (targets < end)).nonzero().squeeze(1)
            tail = self._tail(features[index], table, cluster)
            token = (targets[index] - begin)[:, None]
            inside = tail.gather(1, token).squeeze(1)
            of_cluster = head[index, num_frequent + cluster - 1]
            chosen = chosen.index_copy(0, index, of_cluster + inside)
        return -chosen


class SequenceModel(nn.Module):
    """Predicts the next tokens, given tokens and a state; sampling is the same call with T = 1.

    Args:
        vocabulary: number of tokens (V).
        cutoffs: first tokens of the clusters of rarer tokens, ascending; none for one full softmax.
        divisor: ratio of the vector sizes of consecutive clusters.
        tied: whether input and output share one table of vectors.
        dropout: on embeddings and on the core's features while training.
    """

    def __init__(
        self,
        core: Core,
        vocabulary: int,
        cutoffs: Sequence[int] = (),
        divisor: int = 4,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        config: Any = core.config
        size = config.model_size
        self.vocabulary = vocabulary
        self.dropout = dropout
        self.embedding = TokenTable(vocabulary, size, cutoffs, divisor)
        self.core = core
        self.outputs = None if tied else TokenTable(vocabulary, size, cutoffs, divisor)
        self.softmax = AdaptiveSoftmax(vocabulary, size, len(cutoffs) + 1)

    def initial_state(self, batch_size: int) -> State:
        """The core's state before a stream."""
        return self.core.initial_state(batch_size)

    def with_cache(self, state: State) -> State:
        """See `agent.core.Core`."""
        return self.core.with_cache(state)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the core's own losses train: those of compression, or of routing."""
        return self.core.compression_parameters()

    def resized(self, **sizes: Any) -> "SequenceModel":
        """A copy with other memory sizes, see `Transformer.resized`; raises ValueError for a core without a memory."""
        if not hasattr(self.core, "resized"):
            raise ValueError(f"{', '.join(sizes)}: expected a core with a memory, got {type(self.core).__name__}")
        core = self.core.resized(**sizes)  # type: ignore[operator]
        return copy.deepcopy(self, {id(self.core): core})

    def forward(
        self, tokens: Tensor, reset: Tensor, state: State, targets: Tensor | None = None, return_attention: bool = False
    ) -> SequenceOutput:
        """Consumes T tokens of B rows; `state` is the core's state before them.

        Args:
            tokens: [B, T] int64.
            reset: [B, T] bool, true at the start of a document.
            targets: [B, T] int64, the next tokens, or `IGNORE`.
            return_attention: also return attention weights (slower).

        Raises:
            ValueError: names the argument, the expected and the actual shape or dtype.
        """
        self.check(tokens, targets)
        return self.predict(self.embedding(tokens), reset, state, targets, return_attention)

    @staticmethod
    def check(tokens: Tensor, targets: Tensor | None) -> None:
        """Raises a ValueError if tokens or targets have another rank, shape or dtype than `forward` says."""
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens: expected int64 [B, T], got {tokens.dtype} {list(tokens.shape)}")
        if targets is not None and (targets.shape != tokens.shape or targets.dtype != torch.int64):
            raise ValueError(f"targets: expected int64 {list(tokens.shape)}, got {targets.dtype} {list(targets.shape)}")

    def predict(
        self, inputs: Tensor, reset: Tensor, state: State, targets: Tensor | None, return_attention: bool
    ) -> SequenceOutput:
        """`forward`, given the embeddings [B, T, D] of the tokens."""
        inputs = F.dropout(inputs, self.dropout, self.training)
        features, state, losses, attention = self.core(inputs, reset, state, return_attention)
        features = F.dropout(features, self.dropout, self.training)
        table = self.embedding if self.outputs is None else self.outputs
        if targets is None:
            return SequenceOutput(None, self.softmax.log_probs(features, table), state, losses, attention)
        ignored = targets == IGNORE
        any_target = targets.masked_fill(ignored, 0)
        nll = self.softmax.nll(features.flatten(0, 1), any_target.flatten(), table)
        nll = nll.view(targets.shape).masked_fill(ignored, 0.0)
        return SequenceOutput(nll, None, state, losses, attention)


def smooth_vectors(levels: int, size: int) -> Tensor:
    """Vectors [levels, size] that are similar where levels are: random mixtures of cosines, of deviation 1."""
    places = (torch.arange(levels) + 0.5) / levels
    frequencies = torch.arange(1, 33)
    waves = torch.cos(math.pi * frequencies * places[:, None])
    smoother = waves / frequencies**0.5  # high frequencies count less
    vectors = smoother @ torch.randn(32, size)
    return vectors / vectors.std()


def _log_softmax(logits: Tensor) -> Tensor:
    """In float32 at least, also under autocast."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(dtype).log_softmax(dim=-1)
