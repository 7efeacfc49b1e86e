"""Policies: distributions of actions, whose parameters the network computes.

An action has one of two forms. Of a Discrete space it is a number, int64. Of all other spaces it is a float32 vector of
K columns: one for each choice, which holds its index, and one for each number.

| part of the action | distribution                                 | parameters a column            |
|--------------------|----------------------------------------------|--------------------------------|
| `Choice`           | categorical                                  | a logit for each of its values |
| `Numbers`          | Gaussian; where bounded, squashed or clipped | mean and logarithm of scale    |

The parts are independent given the parameters, so that joint log-probabilities and entropies are sums over them.

What is sampled and what the environment receives can differ: a number with bounds is sampled without them, and `effect`
brings it into -1..1. Trajectories have what was sampled, because its density is exact and never infinite.

P parameters, K columns.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent.encoders import squash

Bounds = Literal["squash", "clip"]
"""How a sampled number comes within bounds."""
Scale = Literal["independent", "state"]
"""Whether the scale of a Gaussian is the same in all states, or depends on the state."""
FIRST_LOG_SCALE = math.log(0.5)
"""Logarithm of a Gaussian's first standard deviation. With 1, half of the squashed actions are beyond 0.6, and
Walker2d-v5 is learned later; 0.5 is also what Andrychowicz et al. 2021, arXiv:2006.05990, recommend."""
LEAST_LOG_SCALE = -5.0
MOST_LOG_SCALE = 2.0
"""Limits of the logarithm of a Gaussian's standard deviation; see `_Within`."""
NODES = 97
FARTHEST_NODE = 6.5
"""Nodes of the integral in the entropy of squashed numbers, and the greatest, in standard deviations. With equal
distances the error falls exponentially with the number of nodes; it is below 1e-6 up to a standard deviation of 4."""
SMALL_TABLE = 256
"""Tables of logits up to this size are not divided, however much of them is padding."""
IMPOSSIBLE = -1e9
"""The logit of what is impossible: its probability is exactly 0, while nothing becomes infinite."""
NONE = -1
"""Stands for the last choice at the start of an episode."""


class Choice(NamedTuple):
    """A part of an action that is one of `size` values."""

    size: int


class Numbers(NamedTuple):
    """A part of an action that is real numbers; `bounded` says of each whether it has bounds, which then are -1..1."""

    bounded: tuple[bool, ...]


ActionSpace = int | tuple[Choice | Numbers, ...]
"""The number of actions of a Discrete space, or the parts of a vector."""


class PolicySummary(NamedTuple):
    """What people are shown of a policy, for parameters [..., P].

    probabilities: [..., A] of all values of all choices, one choice after the other.
    means: [..., N] of the numbers, as the environment would receive them.
    scales: [..., N] standard deviations of the numbers, before they are squashed or clipped.
    """

    probabilities: Tensor
    means: Tensor
    scales: Tensor


class Policy(nn.Module, ABC):
    """A distribution over actions: a module without parameters, so that its tables follow the agent's device.

    Attributes:
        num_parameters: P, outputs of the network.
        num_uniform: how many random numbers a sample needs.
        num_features: of an encoded action.
        fixed: indices of the parameters that are the same in all states.
        first: [P] parameters of a policy that has learned nothing.
    """

    num_parameters: int
    num_uniform: int
    num_features: int
    fixed: tuple[int, ...] = ()
    first: Tensor

    @abstractmethod
    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        """Actions [...] int64 or [..., K] float32, given numbers [..., num_uniform] uniform in 0..1."""

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """The most probable actions; of numbers, those of the highest density before they are squashed."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Joint log-probabilities or log-densities [...] of sampled actions, differentiable in the parameters.

        Raises:
            ValueError: if the shapes do not fit.
        """

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """Joint entropies [...] in nats; of numbers the differential entropy, of bounded ones in units of -1..1."""

    @abstractmethod
    def evenness(self, parameters: Tensor) -> Tensor:
        """How even choices are [...]: -KL(uniform || policy) in nats, at most 0; of numbers their entropy.

        The gradient by the logits is 1 / number of choices - pi. That of the entropy vanishes with pi, so that an
        action that has become improbable in one place, because it is bad elsewhere, stays so.
        """

    @abstractmethod
    def fill_empty(self, mask: Tensor) -> Tensor:
        """A mask of what is possible, [..., P] bool, with all values of each choice of which it has none.

        Raises:
            ValueError: if there are numbers, which no mask can exclude.
        """

    @abstractmethod
    def effect(self, action: Tensor) -> Tensor:
        """What the environment receives for sampled actions; the same form."""

    @abstractmethod
    def none(self, rows: int) -> Tensor:
        """The last actions [rows] or [rows, K] at the start of episodes."""

    @abstractmethod
    def show(self, parameters: Tensor) -> PolicySummary:
        """What people are shown."""

    @abstractmethod
    def layout(self) -> list[dict[str, Any]]:
        """Where the parameters of each column are, in words that JSON can hold; a Discrete space has one column.

        A choice has "logits", its first parameter and the one behind its last. A number has the index of its "mean" and
        of its "log_scale", which is cut to the range "log_scale within", and "effect", the function that the drawn
        number passes through before the environment receives it.
        """

    @abstractmethod
    def encode(self, effect: Tensor) -> Tensor:
        """Features [..., num_features] of received actions: choices one-hot, or zeros for none, and numbers."""

    def last_action(self, effect: Tensor, resets: Tensor) -> Tensor:
        """Received actions [B, ...], and none where the environment was reset, `resets` [B] bool."""
        # As many axes as the actions have, so that each row's flag counts for all of its columns.
        other_axes = [1] * (effect.ndim - 1)
        row_was_reset = resets.reshape(-1, *other_axes)
        none = self.none(1).to(effect.device)
        return torch.where(row_was_reset, none, effect)


class Categorical(Policy):
    """The policy of a Discrete space: one choice, an int64 number. The parameters are unnormalized logits."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.num_parameters = num_actions
        self.num_uniform = num_actions
        self.num_features = num_actions
        self.register_buffer("first", torch.zeros(num_actions), persistent=False)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        return _gumbel_max(parameters, uniform)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(dim=-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        if parameters.shape[:-1] != action.shape:
            raise ValueError(f"actions: expected {list(parameters.shape[:-1])}, got {list(action.shape)}")
        log_probs = torch.log_softmax(parameters, dim=-1)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        # The expectation of -log pi under the policy itself.
        log_probs = torch.log_softmax(parameters, dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def evenness(self, parameters: Tensor) -> Tensor:
        # The expectation of log pi - log uniform under the uniform policy, of the possible actions.
        is_possible = parameters > IMPOSSIBLE / 2
        count = is_possible.sum(dim=-1)
        log_probs = torch.log_softmax(parameters, dim=-1).masked_fill(~is_possible, 0.0)
        return log_probs.sum(dim=-1) / count + count.log()

    def fill_empty(self, mask: Tensor) -> Tensor:
        return mask | ~mask.any(dim=-1, keepdim=True)

    def effect(self, action: Tensor) -> Tensor:
        return action

    def none(self, rows: int) -> Tensor:
        return torch.full((rows,), NONE)

    def show(self, parameters: Tensor) -> PolicySummary:
        nothing = parameters.new_empty(*parameters.shape[:-1], 0)
        return PolicySummary(parameters.softmax(dim=-1), nothing, nothing)

    def layout(self) -> list[dict[str, Any]]:
        return [{"logits": [0, self.num_parameters]}]

    def encode(self, effect: Tensor) -> Tensor:
        values = torch.arange(self.num_features, device=effect.device)
        return effect[..., None] == values


def _tables(sizes: Sequence[int]) -> list[list[int]]:
    """Neighboring choices whose logits fill at least half of a table, if it is not small."""
    tables: list[list[int]] = [[]]
    total = 0
    most = 0
    for size in sizes:
        cells = (len(tables[-1]) + 1) * max(most, size)
        is_sparse = cells > 2 * (total + size)
        if tables[-1] and is_sparse and cells > SMALL_TABLE:
            tables.append([])
            total = 0
            most = 0
        tables[-1].append(size)
        total += size
        most = max(most, size)
    return tables


class Joint(Policy):
    """The policy of any other space: parts that are independent given the parameters."""

    def __init__(self, parts: Sequence[Choice | Numbers], bounds: Bounds, scale: Scale) -> None:
        super().__init__()
        # Neighbors of one kind are computed together: an action of a hundred switches is one block.
        blocks: list[_Block] = []
        for kind, neighbors in groupby(parts, type):
            alike = list(neighbors)
            if kind is Choice:
                sizes = [part.size for part in alike if isinstance(part, Choice)]
                blocks += [_Choices(of_block) for of_block in _tables(sizes)]
            else:
                bounded: list[bool] = []
                for part in alike:
                    if isinstance(part, Numbers):
                        bounded += part.bounded
                blocks.append(_Gaussian(bounded, bounds, scale))
        self.blocks: Sequence[_Block] = nn.ModuleList(blocks)  # type: ignore[assignment]

        # How many columns, parameters and random numbers each block has. They are split by these.
        self._column_counts = [block.num_columns for block in blocks]
        self._parameter_counts = [block.num_parameters for block in blocks]
        self._uniform_counts = [block.num_uniform for block in blocks]
        self.num_parameters = sum(self._parameter_counts)
        self.num_uniform = sum(self._uniform_counts)
        self.num_features = sum(block.num_features for block in blocks)
        self.num_columns = sum(self._column_counts)
        self.register_buffer("first", torch.cat([block.first for block in blocks]), persistent=False)

        # A block counts its parameters from its own first one.
        first_of_block = 0
        fixed: list[int] = []
        for block in blocks:
            fixed += [first_of_block + index for index in block.fixed]
            first_of_block += block.num_parameters
        self.fixed = tuple(fixed)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        numbers = uniform.split(self._uniform_counts, dim=-1)
        columns: list[Tensor] = []
        for block, own, random in zip(self.blocks, self._split(parameters), numbers, strict=True):
            sampled = block.sample(own, random)
            columns.append(sampled)
        return torch.cat(columns, dim=-1)

    def mode(self, parameters: Tensor) -> Tensor:
        columns: list[Tensor] = []
        for block, own in zip(self.blocks, self._split(parameters), strict=True):
            most_probable = block.mode(own)
            columns.append(most_probable)
        return torch.cat(columns, dim=-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        expected = [*parameters.shape[:-1], self.num_columns]
        if list(action.shape) != expected:
            raise ValueError(f"actions: expected {expected}, got {list(action.shape)}")
        columns = action.split(self._column_counts, dim=-1)
        total = torch.zeros(parameters.shape[:-1], device=parameters.device)
        for block, own, chosen in zip(self.blocks, self._split(parameters), columns, strict=True):
            by_column = block.log_probs(own, chosen)
            total = total + by_column.sum(dim=-1)
        return total

    def layout(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        first = 0
        for block in self.blocks:
            found += block.layout(first)
            first += block.num_parameters
        return found

    def entropy(self, parameters: Tensor) -> Tensor:
        return self._sum_over_columns(parameters, lambda block, own: block.entropies(own))

    def evenness(self, parameters: Tensor) -> Tensor:
        return self._sum_over_columns(parameters, lambda block, own: block.evennesses(own))

    def _sum_over_columns(self, parameters: Tensor, by_column: Callable[["_Block", Tensor], Tensor]) -> Tensor:
        """The sum [...] of what is known of each column [..., K], given each block and its parameters."""
        total = torch.zeros(parameters.shape[:-1], device=parameters.device)
        for block, own in zip(self.blocks, self._split(parameters), strict=True):
            total = total + by_column(block, own).sum(dim=-1)
        return total

    def fill_empty(self, mask: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for block, own in zip(self.blocks, mask.split(self._parameter_counts, dim=-1), strict=True):
            parts.append(block.fill_empty(own))
        return torch.cat(parts, dim=-1)

    def effect(self, action: Tensor) -> Tensor:
        received: list[Tensor] = []
        for block, columns in zip(self.blocks, action.split(self._column_counts, dim=-1), strict=True):
            received.append(block.effect(columns))
        return torch.cat(received, dim=-1)

    def none(self, rows: int) -> Tensor:
        values: list[Tensor] = []
        for block in self.blocks:
            shape = (rows, block.num_columns)
            values.append(torch.full(shape, block.none))
        return torch.cat(values, dim=-1)

    def show(self, parameters: Tensor) -> PolicySummary:
        shown: list[PolicySummary] = []
        for block, own in zip(self.blocks, self._split(parameters), strict=True):
            shown.append(block.show(own))
        # Each field of the blocks, one after the other.
        fields = [torch.cat(parts, dim=-1) for parts in zip(*shown, strict=True)]
        return PolicySummary(*fields)

    def encode(self, effect: Tensor) -> Tensor:
        features: list[Tensor] = []
        for block, columns in zip(self.blocks, effect.split(self._column_counts, dim=-1), strict=True):
            features.append(block.encode(columns))
        return torch.cat(features, dim=-1)

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """The parameters of each block, at least in float32: log-densities of many columns add up rounding errors."""
        exact = parameters if parameters.dtype == torch.float64 else parameters.float()
        return exact.split(self._parameter_counts, dim=-1)


class _Block(nn.Module, ABC):
    """Columns of one kind; sums over them are left to `Joint`. `none` is the column's value at an episode's start."""

    num_columns: int
    num_parameters: int
    num_uniform: int
    num_features: int
    first: Tensor
    none: float
    fixed: tuple[int, ...] = ()

    @abstractmethod
    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor: ...

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor: ...

    @abstractmethod
    def log_probs(self, parameters: Tensor, columns: Tensor) -> Tensor: ...

    @abstractmethod
    def entropies(self, parameters: Tensor) -> Tensor: ...

    @abstractmethod
    def evennesses(self, parameters: Tensor) -> Tensor: ...

    @abstractmethod
    def fill_empty(self, mask: Tensor) -> Tensor: ...

    @abstractmethod
    def effect(self, columns: Tensor) -> Tensor: ...

    @abstractmethod
    def encode(self, columns: Tensor) -> Tensor: ...

    @abstractmethod
    def show(self, parameters: Tensor) -> PolicySummary: ...

    @abstractmethod
    def layout(self, first: int) -> list[dict[str, Any]]: ...


class _Choices(_Block):
    """Independent choices. Their logits are one after the other; computed in a table with a row for each choice."""

    none = float(NONE)

    places: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.num_columns = len(sizes)
        self.num_parameters = sum(sizes)
        self.num_uniform = self.num_parameters
        self.num_features = self.num_parameters
        self.register_buffer("first", torch.zeros(self.num_parameters), persistent=False)
        # The place of each logit in the table, whose rows are as long as the greatest size.
        self.most = max(sizes)
        places: list[int] = []
        for row, size in enumerate(sizes):
            first_of_row = row * self.most
            places.extend(range(first_of_row, first_of_row + size))
        self.register_buffer("places", torch.tensor(places), persistent=False)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        # Where there is no logit any finite noise will do: the sum with minus infinity is never the greatest.
        logits = self._table(parameters, -math.inf)
        random = self._table(uniform, 0.5)
        chosen = _gumbel_max(logits, random)
        return chosen.float()

    def mode(self, parameters: Tensor) -> Tensor:
        logits = self._table(parameters, -math.inf)
        most_probable = logits.argmax(dim=-1)
        return most_probable.float()

    def log_probs(self, parameters: Tensor, columns: Tensor) -> Tensor:
        logits = self._table(parameters, -math.inf)
        log_probs = logits.log_softmax(dim=-1)
        chosen = columns.long().unsqueeze(-1)
        return log_probs.gather(-1, chosen).squeeze(-1)

    def entropies(self, parameters: Tensor) -> Tensor:
        table = self._table(parameters, -math.inf)
        log_probs = table.log_softmax(dim=-1)
        # The probability of what does not exist is 0, and 0 times minus infinity would be no number.
        log_probs = log_probs.masked_fill(table == -math.inf, 0.0)
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def evennesses(self, parameters: Tensor) -> Tensor:
        table = self._table(parameters, -math.inf)
        is_possible = table > IMPOSSIBLE / 2
        counts = is_possible.sum(dim=-1)
        log_probs = table.log_softmax(dim=-1).masked_fill(~is_possible, 0.0)
        return log_probs.sum(dim=-1) / counts + counts.log()

    def fill_empty(self, mask: Tensor) -> Tensor:
        table = self._table(mask, False)
        is_empty = ~table.any(dim=-1, keepdim=True)  # [..., K, 1]
        filled = table | is_empty
        return filled.flatten(-2)[..., self.places]

    def effect(self, columns: Tensor) -> Tensor:
        return columns

    def encode(self, columns: Tensor) -> Tensor:
        values = torch.arange(self.most, device=columns.device)
        one_hot = (columns[..., None] == values).flatten(-2)
        return one_hot[..., self.places].float()

    def show(self, parameters: Tensor) -> PolicySummary:
        logits = self._table(parameters, -math.inf)
        table = logits.softmax(dim=-1).flatten(-2)
        probabilities = table[..., self.places]
        nothing = parameters.new_empty(*parameters.shape[:-1], 0)
        return PolicySummary(probabilities, nothing, nothing)

    def layout(self, first: int) -> list[dict[str, Any]]:
        ends = [first + end for end in accumulate(self.sizes)]
        return [{"logits": [end - size, end]} for size, end in zip(self.sizes, ends, strict=True)]

    def _table(self, values: Tensor, missing: float) -> Tensor:
        """Values [..., P] as [..., K, most]."""
        shape = (self.num_columns, self.most)
        num_places = self.num_columns * self.most
        if len(self.places) == num_places:
            return values.unflatten(-1, shape)
        # Choices differ in size: fill up those that have fewer values.
        table = values.new_full((*values.shape[:-1], num_places), missing)
        table[..., self.places] = values
        return table.unflatten(-1, shape)


class _Gaussian(_Block):
    """Independent numbers. The parameters are all means, then all logarithms of scales."""

    none = 0.0
    bounded: Tensor
    squashed: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, bounded: Sequence[bool], bounds: Bounds, scale: Scale) -> None:
        super().__init__()
        self.num_columns = len(bounded)
        self.num_parameters = 2 * self.num_columns
        self.num_uniform = self.num_columns
        self.num_features = self.num_columns
        mean = torch.zeros(self.num_columns)
        self.register_buffer("first", torch.cat([mean, torch.full_like(mean, FIRST_LOG_SCALE)]), persistent=False)
        self.register_buffer("bounded", torch.tensor(bounded), persistent=False)
        self.register_buffer("squashed", self.bounded & (bounds == "squash"), persistent=False)
        self.any_squashed = bounds == "squash" and any(bounded)
        if scale == "independent":
            self.fixed = tuple(range(self.num_columns, self.num_parameters))
        # An expectation over a standard normal variable is a sum over these nodes, weighted by its density.
        nodes = torch.linspace(-FARTHEST_NODE, FARTHEST_NODE, NODES, dtype=torch.float64)
        weights = (-0.5 * nodes.square()).exp()
        self.register_buffer("nodes", nodes.float(), persistent=False)
        self.register_buffer("weights", (weights / weights.sum()).float(), persistent=False)

    def sample(self, parameters: Tensor, uniform: Tensor) -> Tensor:
        mean, log_scale = self._moments(parameters)
        # The inverse of the normal distribution's function; at 0 and 1 it is infinite.
        symmetric = (2 * uniform - 1).clamp(-1 + 1e-7, 1 - 1e-7)
        normal = math.sqrt(2) * torch.erfinv(symmetric)
        return mean + log_scale.exp() * normal

    def mode(self, parameters: Tensor) -> Tensor:
        mean, _ = self._moments(parameters)
        return mean

    def log_probs(self, parameters: Tensor, columns: Tensor) -> Tensor:
        mean, log_scale = self._moments(parameters)
        standard = (columns - mean) * (-log_scale).exp()
        log_normalizer = log_scale + 0.5 * math.log(2 * math.pi)
        log_density = -0.5 * standard.square() - log_normalizer
        # The change of variables to what the environment receives.
        change = torch.where(self.squashed, _log_slope(columns), 0.0)
        return log_density - change

    def entropies(self, parameters: Tensor) -> Tensor:
        mean, log_scale = self._moments(parameters)
        entropy = log_scale + 0.5 * math.log(2 * math.pi * math.e)
        if not self.any_squashed:
            return entropy
        # Squashing adds the expectation of the logarithm of its slope, which has no closed form.
        center = mean[..., None]
        scale = log_scale.exp()[..., None]
        points = center + scale * self.nodes  # [..., N, NODES]
        weighted = _log_slope(points) * self.weights
        added = weighted.sum(dim=-1)
        return entropy + torch.where(self.squashed, added, 0.0)

    def evennesses(self, parameters: Tensor) -> Tensor:
        # Not all numbers have bounds between which they could be uniform.
        return self.entropies(parameters)

    def fill_empty(self, mask: Tensor) -> Tensor:
        raise ValueError(f"mask: expected choices alone, got {self.num_columns} numbers")

    def effect(self, columns: Tensor) -> Tensor:
        within = torch.where(self.squashed, columns.tanh(), columns.clamp(-1, 1))
        return torch.where(self.bounded, within, columns)

    def encode(self, columns: Tensor) -> Tensor:
        # Numbers without bounds may be large.
        return torch.where(self.bounded, columns, squash(columns))

    def show(self, parameters: Tensor) -> PolicySummary:
        mean, log_scale = self._moments(parameters)
        nothing = parameters.new_empty(*parameters.shape[:-1], 0)
        return PolicySummary(nothing, self.effect(mean), log_scale.exp())

    def layout(self, first: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for column in range(self.num_columns):
            effect = "none"
            if self.bounded[column]:
                effect = "tanh" if self.squashed[column] else "cut to -1..1"
            found.append(
                {
                    "mean": first + column,
                    "log_scale": first + self.num_columns + column,
                    "log_scale within": [LEAST_LOG_SCALE, MOST_LOG_SCALE],
                    "effect": effect,
                }
            )
        return found

    def _moments(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of scales."""
        mean, log_scale = parameters.chunk(2, dim=-1)
        if not torch.is_grad_enabled():
            return mean, log_scale.clamp(LEAST_LOG_SCALE, MOST_LOG_SCALE)
        limited: Tensor = _Within.apply(log_scale, LEAST_LOG_SCALE, MOST_LOG_SCALE)
        return mean, limited


class _Within(torch.autograd.Function):
    """`clamp` without a gradient only where that leads further out, so that what is at a limit can come back.

    The scale of a Gaussian may be one parameter. With the gradient of `clamp`, which is 0 on both sides, it would stay
    at a limit for ever.
    """

    @staticmethod
    def forward(ctx: Any, number: Tensor, least: float, most: float) -> Tensor:
        ctx.save_for_backward(number)
        ctx.limits = (least, most)
        return number.clamp(least, most)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (number,) = ctx.saved_tensors
        least, most = ctx.limits
        # Descent moves a number against its gradient.
        leads_out = ((number <= least) & (gradient > 0)) | ((number >= most) & (gradient < 0))
        return gradient.masked_fill(leads_out, 0.0), None, None


def make_policy(space: ActionSpace, bounds: Bounds = "squash", scale: Scale = "independent") -> Policy:
    """The policy of an action space.

    Raises:
        ValueError: if the space has no actions; if there are no such bounds or scales.
    """
    for name, value, known in (("bounds", bounds, Bounds), ("scale", scale, Scale)):
        if value not in get_args(known):
            raise ValueError(f"{name}: expected one of {', '.join(get_args(known))}, got {value!r}")
    if isinstance(space, int):
        if space < 1:
            raise ValueError(f"actions: expected at least 1, got {space}")
        return Categorical(space)
    if not space:
        raise ValueError("actions: expected at least one part, got none")
    for part in space:
        count = part.size if isinstance(part, Choice) else len(part.bounded)
        if count < 1:
            raise ValueError(f"actions: expected at least one in every part, got {part}")
    return Joint(space, bounds, scale)


def exclude(logits: Tensor, possible: Tensor | None) -> Tensor:
    """Logits [..., A] with which only the possible actions, [..., A] bool, have a probability; None if all are."""
    if possible is None:
        return logits
    return logits.masked_fill(~possible, IMPOSSIBLE)


def _gumbel_max(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples [...] int64 of the softmax of logits [..., A], given numbers of the same shape uniform in 0..1."""
    exponential = -uniform.clamp_min(1e-20).log()
    gumbel = -exponential.log()
    return (logits + gumbel).argmax(dim=-1)


def _log_slope(number: Tensor) -> Tensor:
    """The logarithm of the slope of tanh, log(1 - tanh(x)^2), without the rounding of tanh to 1 far from 0."""
    # 1 - tanh(x)^2 = sech(x)^2, and log(sech(x)) = log(2) - x - log(1 + exp(-2 x)).
    log_sech = math.log(2) - number - F.softplus(-2 * number)
    return 2 * log_sech
