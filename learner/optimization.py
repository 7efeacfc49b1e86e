"""The optimization step of all learners: gradient sum, norms, finite check, clipping, optimizer and its state."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from learner.communicator import Communicator
from learner.errors import NotFinite

_STATISTICS = {torch.optim.Adam: ("exp_avg", "exp_avg_sq"), torch.optim.RMSprop: ("square_avg",)}
"""State of the optimizers per parameter, in tensors of its shape, besides the number of steps."""


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

    Raises:
        ValueError: if a compression parameter is not a parameter of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        max_gradient_norm: float | None,
        comm: Communicator,
    ) -> None:
        self.module, self.max_gradient_norm, self.comm = module, max_gradient_norm, comm
        parameters = list(module.parameters())
        compression = {id(parameter) for parameter in module.compression_parameters()}  # type: ignore[operator]
        if others := compression - {id(parameter) for parameter in parameters}:
            raise ValueError(f"compression_parameters: expected parameters of the agent, got {len(others)} others")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.groups = [[each for each in trained if (id(each) in compression) == second] for second in (False, True)]
        self.optimizer = make_optimizer([{"params": group} for group in self.groups])

    def zero_grad(self) -> None:
        """Discards the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def fused(self) -> bool:
        """Whether `step_unread` is possible."""
        return bool(self.optimizer.defaults.get("fused"))

    @property
    def skipped(self) -> Tensor | None:
        """A scalar on the device: 1 if the last `step_unread` was skipped, else 0. None after `step`."""
        return getattr(self.optimizer, "found_inf", None)

    def step(
        self,
        sums: dict[str, Tensor],
        learning_rate: float,
        label: str,
        number: int,
        find_fields: Callable[[], list[str]] | None = None,
        others: dict[str, Tensor] | None = None,
    ) -> dict[str, float]:
        """Updates the parameters from their gradients, which are summed over the learners.

        Args:
            sums: scalar metrics by name, first the losses; each learner's share of the sum over learners.
            label, number: name the step in errors.
            find_fields: names, for errors, the fields of the trajectory that are not finite; may use collectives.
            others: scalar metrics that are not summed.

        Returns:
            the sums over all learners, the norms of both groups' gradients before clipping, and the others.

        Raises:
            NotFinite: if a loss or a gradient norm is not finite; names parameters with such gradients. Raised by all
                learners; nothing was changed, and the gradients are discarded.
        """
        norms, (names, values), _ = self._measure(sums, others or {})
        metrics = dict(zip(names, values.tolist()))
        if reason := not_finite(metrics):
            bad = [
                name
                for name, parameter in self.module.named_parameters()
                if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
            ]
            message = f"{label} {number} is not finite: {reason}; parameters with such gradients: {list_names(bad)}"
            fields = list[str]()
            if find_fields is not None:
                fields = find_fields()
                message += f"; fields of the trajectory that are not finite: {list_names(fields)}"
            self.zero_grad()
            raise NotFinite(f"{message}. The weights were not changed.", number, fields)
        self._apply(norms, learning_rate)
        return metrics

    def step_unread(self, sums: dict[str, Tensor], learning_rate: float, others: dict[str, Tensor]) -> Measured:
        """Like `step`, but waits for nothing: the device itself skips the step where `step` would raise `NotFinite`.

        Returns:
            what `step` returns, on the device; `not_finite` tells from it whether the step was skipped.
        """
        norms, measured, finite = self._measure(sums, others)
        # As torch.amp.GradScaler: at 1, fused kernels change neither parameters nor statistics nor numbers of steps.
        self._apply(norms, learning_rate, found_inf=1 - finite.float())
        return measured

    def _measure(self, sums: dict[str, Tensor], others: dict[str, Tensor]) -> tuple[list[Tensor], Measured, Tensor]:
        """Sums gradients and metrics; returns the norms by group, the metrics, and whether `not_finite` is empty."""
        self._sum_gradients()
        norms = [self._norm(group) for group in self.groups]
        totals = self.comm.sum(torch.stack([value.detach().to(norms[0]) for value in sums.values()]))
        losses = sum(name.startswith("loss/") for name in sums)
        finite = torch.stack([totals[:losses].isfinite().all(), *(norm.isfinite() for norm in norms)]).all()
        rest = torch.stack([value.to(norms[0]) for value in [*norms, *others.values()]])
        names = [*sums, "gradient/norm", "gradient/compression_norm", *others]
        return norms, Measured(names, torch.cat([totals, rest])), finite

    def _norm(self, group: list[nn.Parameter]) -> Tensor:
        gradients = [parameter.grad for parameter in group if parameter.grad is not None]
        # Of no gradients, torch would return a tensor on the CPU.
        return get_total_norm(gradients) if gradients else torch.zeros((), device=next(self.module.parameters()).device)

    def _apply(self, norms: list[Tensor], learning_rate: float, found_inf: Tensor | None = None) -> None:
        """Clips the gradients and steps the optimizer."""
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
        gradients = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        sums = self.comm.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, total in zip(gradients, sums.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(total.view_as(gradient))

    def state_dict(self) -> dict[str, Any]:
        """A copy, on the CPU, of the optimizer's state."""
        return copy_to_cpu(self.optimizer.state_dict())

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores the statistics of an optimizer of the same kind; hyper-parameters stay those of this one.

        Raises a ValueError for the state of other parameters or of another optimizer.
        """
        optimizer = self.optimizer
        own = optimizer.state_dict()["param_groups"]
        try:
            found = saved["param_groups"]
            if len(own) != len(found):
                raise ValueError(f"optimizer: expected {len(own)} groups of parameters, got {len(found)}")
            groups = [{**mine, "params": theirs["params"]} for mine, theirs in zip(own, found)]
            optimizer.load_state_dict(copy_to_cpu({**saved, "param_groups": groups}))
            for parameter, statistics in optimizer.state.items():
                for name in ("step", *_STATISTICS[type(optimizer)], *statistics):
                    shape = torch.Size() if name == "step" else parameter.shape
                    if not isinstance(statistics[name], Tensor) or statistics[name].shape != shape:
                        raise ValueError(f"optimizer: {name}: expected a tensor of {list(shape)}, got another")
        except (KeyError, TypeError, AttributeError) as error:
            expected = f"expected the state of {type(optimizer).__name__}"
            raise ValueError(f"optimizer: {expected}, got another: {error!r}") from error
        if optimizer.defaults.get("momentum"):
            # RMSprop makes this at a parameter's first step only, and the saved one may have had no momentum.
            for statistics in optimizer.state.values():
                statistics.setdefault("momentum_buffer", torch.zeros_like(statistics["square_avg"]))


def not_finite(metrics: dict[str, float]) -> str:
    """The losses and gradient norms that are not finite, for errors; empty if all are."""
    checked = {name: value for name, value in metrics.items() if name.startswith(("loss/", "gradient/"))}
    return ", ".join(f"{name} = {value}" for name, value in checked.items() if not math.isfinite(value))


def list_names(names: Iterable[str]) -> str:
    """The first five names, and how many more there are."""
    first, rest = list(names)[:5], list(names)[5:]
    return (", ".join(first) or "none") + (f" and {len(rest)} more" if rest else "")


def snapshot(module: nn.Module) -> Callable[[], dict[str, Tensor]]:
    """Copies a module's parameters and buffers, by name, on its device.

    Returns:
        a function that gives the copies on the CPU, from any thread; from a GPU in one transfer, beside other work.
    """
    tensors = module.state_dict()
    try:
        joined = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors.values()])
    except torch.OutOfMemoryError:
        copies = copy_to_cpu(dict(tensors))
        return lambda: copies
    likes = [(name, tensor.dtype, tensor.shape, tensor.nbytes) for name, tensor in tensors.items()]
    done = torch.cuda.current_stream(joined.device).record_event() if joined.is_cuda else None

    def complete() -> dict[str, Tensor]:
        with torch.cuda.stream(torch.cuda.Stream(joined.device)) if done else nullcontext():
            if done:
                done.wait()
            parts = joined.cpu().split([size for *_, size in likes])
        # Clones, because a view is pickled with all of `parts` and may begin where its dtype must not.
        return {name: part.clone().view(dtype).view(shape) for part, (name, dtype, shape, _) in zip(parts, likes)}

    return complete


def copy_to_cpu(tree: Any) -> Any:
    """Nested dicts, lists and tuples with copies, on the CPU, of their tensors."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: copy_to_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copy_to_cpu(value) for value in tree)
    return tree
