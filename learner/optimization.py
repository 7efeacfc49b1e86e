"""The optimization step of all learners: gradient sum, norms, finite check, clipping, optimizer and its state."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from learner.communicator import Communicator
from learner.errors import NotFinite
from learner.replica import StateDict

_STATISTICS = {torch.optim.Adam: ("exp_avg", "exp_avg_sq"), torch.optim.RMSprop: ("square_avg",)}
"""What an optimizer keeps of each parameter, in tensors of its shape, besides the number of steps."""


ParameterGroup = dict[str, Any]
"""A group of an optimizer: its parameters as "params", and its options by name."""
Scalars = dict[str, Tensor]
"""Tensors without axes, by name."""


class Measured(NamedTuple):
    """Metrics of a step that are still on the device: `values` [N] of `names`."""

    names: list[str]
    values: Tensor


class Optimization:
    """Updates a module's parameters in two groups, main and compression, whose gradients are clipped separately.

    Args:
        module: the module, on its device; `module.compression_parameters()` returns the second group.
        make_optimizer: makes an Adam or RMSprop optimizer from the list of groups.
        max_gradient_norm: longer gradients of a group are scaled to this norm; None does not clip.
        comm: the learners whose gradients are summed.
        unread: whether steps may stay unread, see `step_unread`; the optimizer is then a fused Adam.

    Raises:
        ValueError: if a compression parameter is not a parameter of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[list[ParameterGroup]], torch.optim.Optimizer],
        max_gradient_norm: float | None,
        comm: Communicator,
        unread: bool = False,
    ) -> None:
        self.module = module
        self.max_gradient_norm = max_gradient_norm
        self.comm = comm
        self.unread = unread

        # By identity: parameters compare elementwise.
        parameters = {id(parameter): parameter for parameter in module.parameters()}
        compression = {id(parameter) for parameter in module.compression_parameters()}  # type: ignore[operator]
        others = compression - parameters.keys()
        if others:
            raise ValueError(f"compression_parameters: expected parameters of the agent, got {len(others)} others")

        # The main group and that of compression, without what is not trained.
        main_group: list[nn.Parameter] = []
        compression_group: list[nn.Parameter] = []
        for key, parameter in parameters.items():
            if not parameter.requires_grad:
                continue
            if key in compression:
                compression_group.append(parameter)
            else:
                main_group.append(parameter)
        self.groups = [main_group, compression_group]
        self.optimizer = make_optimizer([{"params": group} for group in self.groups])

    def zero_grad(self) -> None:
        """Discards the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def skipped(self) -> Tensor | None:
        """A scalar on the device: 1 if the last `step_unread` was skipped, else 0. None after `step`."""
        # The fused kernels of torch read this attribute, which `_apply` sets.
        return getattr(self.optimizer, "found_inf", None)

    def step(
        self,
        sums: Scalars,
        learning_rate: float,
        label: str,
        number: int,
        find_fields: Callable[[], list[str]] | None = None,
        others: Scalars | None = None,
    ) -> dict[str, float]:
        """Updates the parameters from their gradients, which are summed over the learners.

        Args:
            sums: scalar metrics by name, those of losses begin with "loss/"; each learner's share of the sum over
                learners.
            label, number: name the step in errors.
            find_fields: names, for errors, the fields of the trajectory that are not finite; may use collectives.
            others: scalar metrics that are not summed.

        Returns:
            the sums over all learners, the norms of both groups' gradients before clipping, and the others.

        Raises:
            NotFinite: if a loss or a gradient norm is not finite; names parameters with such gradients. Raised by all
                learners; nothing was changed, and the gradients are discarded.
        """
        norms, measured, _ = self._measure(sums, others or {})
        metrics = dict(zip(measured.names, measured.values.tolist()))
        reason = not_finite(metrics)
        if not reason:
            self._apply(norms, learning_rate)
            return metrics

        # Nothing was changed. Say what is wrong, as far as it can be found.
        bad = list_names(self._not_finite_parameters())
        message = f"{label} {number} is not finite: {reason}; parameters with such gradients: {bad}"
        fields: list[str] = []
        if find_fields is not None:
            fields = find_fields()
            message += f"; fields of the trajectory that are not finite: {list_names(fields)}"
        self.zero_grad()
        raise NotFinite(f"{message}. The weights were not changed.", number, fields)

    def _not_finite_parameters(self) -> list[str]:
        """The names of parameters whose gradients are not finite."""
        names = []
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                continue
            is_finite = bool(parameter.grad.isfinite().all())
            if not is_finite:
                names.append(name)
        return names

    def step_unread(self, sums: Scalars, learning_rate: float | Tensor, others: Scalars) -> Measured:
        """Like `step`, but waits for nothing: the device itself skips the step where `step` would raise `NotFinite`.

        Returns:
            what `step` returns, on the device; `not_finite` tells from it whether the step was skipped.
        """
        norms, measured, finite = self._measure(sums, others)
        # As torch.amp.GradScaler: at 1, fused kernels change neither parameters nor statistics nor numbers of steps.
        found_inf = 1 - finite.float()
        self._apply(norms, learning_rate, found_inf)
        return measured

    @contextmanager
    def capturable(self) -> Iterator[None]:
        """Lets `step_unread` be recorded as a part of a CUDA graph, with a learning rate that is a tensor."""
        before = [dict(options) for options in self.optimizer.param_groups]
        for options in self.optimizer.param_groups:
            options["capturable"] = True
        try:
            yield
        finally:
            # The graph has its learning rate; what is saved, and updates outside the graph, have numbers.
            for options, old in zip(self.optimizer.param_groups, before):
                options.update(old)

    def _measure(self, sums: Scalars, others: Scalars) -> tuple[list[Tensor], Measured, Tensor]:
        """Sums gradients and metrics over the learners, and reads nothing.

        Returns:
            the norms of the gradients by group; the metrics; a scalar that is true if losses and norms are finite.
        """
        self._sum_gradients()
        norms = [self._norm(group) for group in self.groups]
        # All metrics have the device and the dtype of the norms, so that they can be read in one transfer.
        like = norms[0]
        own_sums = [value.detach().to(like) for value in sums.values()]
        totals = self.comm.sum(torch.stack(own_sums))
        unsummed = [*norms, *others.values()]
        rest = torch.stack([value.to(like) for value in unsummed])
        names = [*sums, "gradient/norm", "gradient/compression_norm", *others]
        measured = Measured(names, torch.cat([totals, rest]))

        losses = [total for name, total in zip(sums, totals.unbind()) if name.startswith("loss/")]
        all_finite = torch.stack([*losses, *norms]).isfinite().all()
        return norms, measured, all_finite

    def _norm(self, group: list[nn.Parameter]) -> Tensor:
        """The norm of all gradients of a group; 0 if there are none."""
        gradients = _gradients(group)
        if not gradients:  # torch would return a tensor on the CPU
            device = next(self.module.parameters()).device
            return torch.zeros((), device=device)
        return get_total_norm(gradients)

    def _apply(self, norms: list[Tensor], learning_rate: float | Tensor, found_inf: Tensor | None = None) -> None:
        """Clips the gradients and steps the optimizer."""
        # Each group by its own norm: the compression's gradients do not shrink the others, nor the reverse.
        if self.max_gradient_norm is not None:
            for group, norm in zip(self.groups, norms):
                clip_grads_with_norm_(group, self.max_gradient_norm, norm)
        for options in self.optimizer.param_groups:
            options["lr"] = learning_rate
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.optimizer.step()

    def _sum_gradients(self) -> None:
        """Replaces the gradients by their sums over the learners, in one all-reduce."""
        if self.comm.size == 1:
            return
        gradients = _gradients(self.module.parameters())
        sizes = [gradient.numel() for gradient in gradients]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        sums = self.comm.sum(joined).split(sizes)
        for gradient, total in zip(gradients, sums):
            gradient.copy_(total.view_as(gradient))

    def state_dict(self) -> StateDict:
        """A copy, on the CPU, of the optimizer's state."""
        return copy_to_cpu(self.optimizer.state_dict())

    def load_state_dict(self, saved: StateDict) -> None:
        """Restores the statistics of an optimizer of the same kind; hyper-parameters stay those of this one.

        Raises a ValueError for the state of other parameters or of another optimizer.
        """
        optimizer = self.optimizer
        own = optimizer.state_dict()["param_groups"]
        try:
            # The saved statistics, with the options of this optimizer.
            found = saved["param_groups"]
            if len(own) != len(found):
                raise ValueError(f"optimizer: expected {len(own)} groups of parameters, got {len(found)}")
            groups = []
            for mine, theirs in zip(own, found):
                groups.append({**mine, "params": theirs["params"]})
            with_own_options = {**saved, "param_groups": groups}
            optimizer.load_state_dict(copy_to_cpu(with_own_options))
            for parameter, statistics in optimizer.state.items():
                self._require_statistics(parameter, statistics)
                _store_like(parameter, statistics)
        except (KeyError, TypeError, AttributeError) as error:
            expected = f"expected the state of {type(optimizer).__name__}"
            raise ValueError(f"optimizer: {expected}, got another: {error!r}") from error

        if optimizer.defaults.get("momentum"):
            # RMSprop makes this at a parameter's first step only, and the saved one may have had no momentum.
            for statistics in optimizer.state.values():
                zeros = torch.zeros_like(statistics["square_avg"])
                statistics.setdefault("momentum_buffer", zeros)

    def _require_statistics(self, parameter: Tensor, statistics: StateDict) -> None:
        """Raises a ValueError or KeyError if the statistics of a parameter are not those of this optimizer."""
        # Those that it needs, and those that there are.
        names = (*_STATISTICS[type(self.optimizer)], *statistics)
        expected = dict.fromkeys(names, parameter.shape)
        expected["step"] = torch.Size()  # a number
        for name, shape in expected.items():
            found = statistics[name]
            if not isinstance(found, Tensor) or found.shape != shape:
                raise ValueError(f"optimizer: {name}: expected a tensor of {list(shape)}, got another")


def _store_like(parameter: Tensor, statistics: StateDict) -> None:
    """Gives statistics the memory format of their parameter, which files do not keep and fused kernels need."""
    for name, values in statistics.items():
        if name != "step":
            statistics[name] = torch.empty_like(parameter).copy_(values)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def not_finite(metrics: dict[str, float]) -> str:
    """The losses and gradient norms that are not finite, for errors; empty if all are."""
    found = []
    for name, value in metrics.items():
        must_be_finite = name.startswith(("loss/", "gradient/"))
        if must_be_finite and not math.isfinite(value):
            found.append(f"{name} = {value}")
    return ", ".join(found)


def list_names(names: Iterable[str]) -> str:
    """The first five names, and how many more there are."""
    listed = list(names)
    if not listed:
        return "none"
    text = ", ".join(listed[:5])
    if len(listed) > 5:
        text += f" and {len(listed) - 5} more"
    return text


def snapshot(module: nn.Module) -> Callable[[], dict[str, Tensor]]:
    """Copies a module's parameters and buffers, by name, on its device.

    Returns:
        a function that gives the copies on the CPU, from any thread; from a GPU in one transfer, beside other work.
    """
    tensors = module.state_dict()
    try:
        # The bytes of all tensors, one after the other.
        joined = torch.cat([_bytes_of(tensor) for tensor in tensors.values()])
    except torch.OutOfMemoryError:
        # There is no room for a second copy of the weights on the device.
        copies = copy_to_cpu(dict(tensors))
        return lambda: copies

    # Not the tensors themselves: the function must not keep them.
    likes = []
    for name, tensor in tensors.items():
        likes.append(_Like(name, tensor.dtype, tensor.shape, tensor.nbytes))
    sizes = [like.nbytes for like in likes]
    move = _move_beside(joined) if joined.is_cuda else joined.cpu

    def complete() -> dict[str, Tensor]:
        parts = move().split(sizes)
        found = {}
        for like, part in zip(likes, parts):
            # Clones, because a view is pickled with all of `parts` and may begin where its dtype must not.
            copied = part.clone().view(like.dtype)
            found[like.name] = copied.view(like.shape)
        return found

    return complete


def _bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a tensor, [bytes] uint8."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class _Like(NamedTuple):
    """What a copy of a tensor looks like."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    nbytes: int


def _move_beside(joined: Tensor) -> Callable[[], Tensor]:
    """A function that copies a tensor from the GPU once it is complete, on a stream of its own."""
    complete = torch.cuda.current_stream(joined.device).record_event()

    def move() -> Tensor:
        with torch.cuda.stream(torch.cuda.Stream(joined.device)):
            complete.wait()
            return joined.cpu()

    return move


def copy_to_cpu(tree: Any) -> Any:
    """Nested dicts, lists and tuples with copies, on the CPU, of their tensors."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: copy_to_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copy_to_cpu(value) for value in tree)
    return tree
