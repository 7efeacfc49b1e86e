"""One step of IMPALA's learner: trajectories in, gradients, new weights out.

The learner owns the agent's weights and the optimizer and nothing else: no processes, files or environments. It may be
one of several that share each batch (`data_parallel`), which `group` places on a cluster. Checkpoints are made of its
`state_dict()` by `checkpoints`, curves of the metrics it returns by `metrics`.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from agent.core.state import detach_state, leaves, state_to
from agent.fields import Above0, AtLeast0, Checked, Decay, Fraction
from agent.trajectory import Trajectory, loss_mask, validate
from learner import losses
from learner.communicator import DataParallel
from learner.optimization import (
    copy_to_cpu,
    gradient_norm,
    load_optimizer,
    not_finite,
    shorten,
    split_parameters,
    sum_gradients,
    weights_to_cpu,
)
from learner.vtrace import VTraceReturns, action_log_probs, vtrace


@dataclass(frozen=True)
class LearnerConfig(Checked):
    """How the learner learns. Impossible values raise a ValueError that names field, expectation and value."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer. The IMPALA paper used rmsprop; transformers are usually trained with adam."""
    learning_rate: Above0 = 1e-4
    """Learning rate at the first step."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to 0 over the run's total steps."""
    adam_beta1: Decay = 0.9
    """Adam: decay of the mean of the gradient."""
    adam_beta2: Decay = 0.999
    """Adam: decay of the mean of the squared gradient."""
    adam_epsilon: Above0 = 1e-6
    """Adam: added to the root of the mean squared gradient."""
    rmsprop_decay: Decay = 0.99
    """RMSProp: decay of the mean of the squared gradient."""
    rmsprop_epsilon: Above0 = 0.1
    """RMSProp: added to the root of the mean squared gradient (PyTorch's; TensorFlow's stands under the root)."""
    rmsprop_momentum: Decay = 0.0
    """RMSProp: momentum."""
    discount: Fraction = 0.99
    """Gamma, per agent step."""
    entropy_cost: AtLeast0 = 2e-3
    """Weight of the entropy bonus at the first step."""
    entropy_cost_end: AtLeast0 | None = None
    """If given, the weight of the entropy bonus goes linearly to this over the run's total steps."""
    baseline_cost: AtLeast0 = 0.5
    """Weight of the value function's loss, itself half the squared error."""
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric"] = "none"
    """How rewards are clipped before they are learned. What the run reports as return is never clipped."""
    reward_scale: Above0 = 1.0
    """Factor of the rewards after clipping."""
    max_gradient_norm: Above0 | None = 2.5
    """Gradients longer than this are scaled to it, those of the compression apart from all others; none to not clip.
    It depends on the reduction: the IMPALA paper clips sums at 40."""
    clip_rho: Above0 | None = 1.0
    """Threshold rho-bar of the importance weights of the value targets; none to not clip."""
    clip_c: Above0 | None = 1.0
    """Threshold c-bar of the importance weights of the traces, at most `clip_rho`; none to not clip."""
    clip_pg_rho: Above0 | None = 1.0
    """Threshold of the importance weights of the policy gradient; none to not clip."""
    lambda_: Fraction = 1.0
    """Factor of the V-trace traces; 1 is IMPALA. It shortens the value targets; the advantages, made of the next step's
    target, look one step farther: 0 means one-step targets and two-step advantages."""
    reduction: Literal["sum", "mean"] = "mean"
    """sum over batch and time as IMPALA, or mean over the steps that acted."""
    device: str = "auto"
    """Where to learn: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.clip_c or math.inf) > (self.clip_rho or math.inf):
            highest = f"at most clip_rho = {self.clip_rho} (IMPALA, section 4.1)"
            raise ValueError(f"clip_c: expected {highest}, got {self.clip_c!r}")


class Learner:
    """Trains an agent on trajectories with V-trace.

    The loss is policy gradient + baseline_cost * baseline - entropy_cost * entropy + the sum of the agent's own
    losses, weighted by the agent. The compression parameters receive gradient from their own loss alone and no other
    parameter receives any from it; for the same reason their gradient is clipped apart from that of all others.

    Attributes:
        agent: the module that is trained, moved to the device. Its interface is `agent(observation, last_action,
            last_reward, reset, state)` and `agent.compression_parameters()`.
        version: updates made, which is the version of the weights.
        steps: agent steps learned from, of those that acted.
    """

    def __init__(
        self, agent: nn.Module, config: LearnerConfig, total_steps: int, parallel: DataParallel | None = None
    ) -> None:
        """Makes a learner at version 0.

        Args:
            agent: see the class.
            config: how to learn.
            total_steps: agent steps at which the schedules end.
            parallel: the learners that this one shares batches with; none by default. They must have equal weights and
                be given shards of equally many rows; their updates are then those of one learner on all rows.

        Raises:
            ValueError: if `total_steps` is not positive, or a compression parameter is not a parameter of the agent.
        """
        if total_steps < 1:
            raise ValueError(f"total_steps: expected at least 1, got {total_steps}")
        self.config = config
        self.total_steps = total_steps
        self.device = resolve_device(config.device)
        self.agent = agent.to(self.device)
        self.version = 0
        self.steps = 0
        self._parallel = parallel or DataParallel()
        self._main_parameters, self._compression_parameters = split_parameters(self.agent)
        self._optimizer = _make_optimizer(config, self._main_parameters, self._compression_parameters)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        if self.config.learning_rate_schedule == "constant":
            return self.config.learning_rate
        return self.config.learning_rate * (1 - self._progress)

    @property
    def entropy_cost(self) -> float:
        """The weight of the entropy bonus in the next update."""
        start, end = self.config.entropy_cost, self.config.entropy_cost_end
        return start if end is None else start + (end - start) * self._progress

    @property
    def _progress(self) -> float:
        return min(1.0, self.steps / self.total_steps)

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learns from one batch.

        Args:
            trajectory: T steps of B rows on any device, this learner's shard of the batch; see `agent.trajectory`.

        Returns:
            metrics of the whole batch by name: losses as they enter the total (weighted, reduced as configured), those
            of the compression by layer, entropy in nats a step, gradient norms before clipping, importance weights,
            mean value over the steps that acted, policy lag in versions, learning rate, entropy cost.

        Raises:
            ValueError: if the trajectory, or what the agent makes of it, does not have the shapes of the contract.
            FloatingPointError: if a loss or a gradient is not finite; names which. The weights, the optimizer and the
                counters are then as they were before the call. All learners that share the batch raise it.
            PeerLost: if another learner was lost; likewise with nothing changed.
        """
        validate(trajectory)
        trajectory = state_to(trajectory, self.device)
        self.agent.train()
        self._optimizer.zero_grad(set_to_none=True)
        parts = self._losses(trajectory)
        parts["loss/total"].backward()
        sum_gradients(self.agent.parameters(), self._parallel)
        main_norm = gradient_norm(self._main_parameters)
        compression_norm = gradient_norm(self._compression_parameters)

        sums = self._parallel.sum(torch.stack([part.detach().to(main_norm) for part in parts.values()]))
        lag = self._parallel.max((self.version - trajectory.version).max())
        names = [*parts, "policy_lag/max", "gradient/norm", "gradient/compression_norm"]
        stacked = torch.cat([sums, torch.stack([lag.to(main_norm), main_norm, compression_norm.to(main_norm)])])
        # Nothing before this waits for the device but instructions, which do it first of all (`Agent.forward`).
        metrics: dict[str, float] = dict(zip(names, stacked.tolist()))
        self._require_finite(metrics, trajectory)

        if self.config.max_gradient_norm is not None:
            clip_grads_with_norm_(self._main_parameters, self.config.max_gradient_norm, main_norm)
            clip_grads_with_norm_(self._compression_parameters, self.config.max_gradient_norm, compression_norm)
        metrics["learning_rate"] = self.learning_rate
        metrics["entropy_cost"] = self.entropy_cost
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        self._optimizer.step()
        self.version += 1
        self.steps += round(metrics.pop("steps"))
        return metrics

    def weights(self) -> dict[str, Tensor]:
        """Copies of the agent's parameters and buffers on the CPU, by name: for actors and for checkpoints."""
        return weights_to_cpu(self.agent)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: copies, on the CPU, of weights and optimizer, and the counters."""
        return {
            "weights": self.weights(),
            "optimizer": copy_to_cpu(self._optimizer.state_dict()),
            "version": self.version,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state that `state_dict` gave. The configuration, hyper-parameters of the optimizer included, and
        `total_steps` stay those of this learner.

        Raises:
            RuntimeError, ValueError: if weights or optimizer are those of another agent.
        """
        self.agent.load_state_dict(state["weights"])
        load_optimizer(self._optimizer, state["optimizer"])
        self.version = int(state["version"])
        self.steps = int(state["steps"])

    def _losses(self, trajectory: Trajectory) -> dict[str, Tensor]:
        """Forward pass and losses: scalars on the device, by the name of their metric.

        Each is this learner's part: over all learners they add up to what it is on the whole batch.
        """
        config = self.config
        output = self.agent(
            trajectory.observation,
            trajectory.last_action,
            trajectory.reward,
            trajectory.reset,
            detach_state(trajectory.core_state),
        )
        logits = output.policy_logits[:, :-1]
        if logits.shape != trajectory.policy_logits.shape:
            expected, actual = list(trajectory.policy_logits.shape), list(logits.shape)
            raise ValueError(f"policy_logits of the agent: expected {expected} as the trajectory's, got {actual}")
        if output.value.shape != trajectory.reward.shape:
            expected, actual = list(trajectory.reward.shape), list(output.value.shape)
            raise ValueError(f"value of the agent: expected {expected}, got {actual}")

        mask = loss_mask(trajectory)
        values, actions = output.value[:, :-1], trajectory.action
        steps = mask.sum()
        # What makes a mean over the steps that acted in the shard a part of the mean over those of the batch.
        share = steps.clamp(min=1).to(values.dtype) / self._parallel.sum(steps).clamp(min=1)
        weight = share if config.reduction == "mean" else 1.0
        returns = self._returns(trajectory, logits, output.value, mask)
        policy = losses.policy_gradient_loss(logits, actions, returns.pg_advantages, mask, config.reduction)
        baseline = losses.baseline_loss(values, returns.vs, mask, config.reduction)
        entropy = losses.entropy_loss(logits, mask, config.reduction)
        auxiliary = losses.reduce_losses(output.losses, self._parallel.sum)
        parts = {
            "loss/policy": weight * policy,
            "loss/baseline": weight * (config.baseline_cost * baseline),
            "loss/entropy": weight * (self.entropy_cost * entropy),
            **{f"loss/{name}": value for name, value in auxiliary.items()},
        }
        parts["loss/total"] = torch.stack([value.float() for value in parts.values()]).sum()
        with torch.no_grad():
            parts |= {
                "steps": steps,
                "policy/entropy": share * losses.reduce(losses.entropy(logits), mask, "mean"),
                "value/mean": share * losses.reduce(values, mask, "mean"),
                "value/target_mean": share * losses.reduce(returns.vs, mask, "mean"),
                "importance/mean_rho": share * returns.mean_rho,
                "importance/clipped_fraction": share * returns.clipped_fraction,
                "policy_lag/mean": (self.version - trajectory.version).float().mean() / self._parallel.size,
            }
        return parts

    def _returns(self, trajectory: Trajectory, logits: Tensor, values: Tensor, mask: Tensor) -> VTraceReturns:
        """V-trace of the first T entries; the last is the bootstrap."""
        config = self.config
        actions = trajectory.action
        with torch.no_grad():
            target = action_log_probs(logits, actions)
            behaviour = action_log_probs(trajectory.policy_logits, actions)
            return vtrace(
                log_rhos=target - behaviour,
                discounts=config.discount * trajectory.discount[:, 1:],
                rewards=config.reward_scale * losses.REWARD_CLIPPING[config.reward_clipping](trajectory.reward[:, 1:]),
                values=values[:, :-1],
                bootstrap_value=values[:, -1],
                acted=mask,
                clip_rho_threshold=config.clip_rho,
                clip_c_threshold=config.clip_c,
                clip_pg_rho_threshold=config.clip_pg_rho,
                lambda_=config.lambda_,
            )

    def _require_finite(self, metrics: dict[str, float], trajectory: Trajectory) -> None:
        bad = [name for name in metrics if name.startswith(("loss/", "gradient/")) and not math.isfinite(metrics[name])]
        if not bad:
            return
        parameters = not_finite(self.agent)
        none = torch.zeros((), dtype=torch.int64, device=self.device)
        counts = [sum(((~leaf.isfinite()).sum() for leaf in leaves(field)), start=none) for field in trajectory]
        spoilt = self._parallel.sum(torch.stack(counts)).tolist()
        inputs = [name for name, count in zip(trajectory._fields, spoilt) if count]
        self._optimizer.zero_grad(set_to_none=True)
        raise FloatingPointError(
            f"update {self.version + 1} is not finite: {', '.join(f'{name} = {metrics[name]}' for name in bad)}; "
            f"parameters with such gradients: {parameters}; "
            f"fields of the trajectory that are not finite: {shorten(inputs)}. The weights were not changed."
        )


def resolve_device(device: str) -> torch.device:
    """The device named, where "auto" is a GPU if there is one and the CPU otherwise.

    Raises:
        ValueError: if torch knows no such device, or cannot compute on it: a GPU that is absent, or "meta".
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.ones(1, device=resolved).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(
            f"device: expected auto, cpu or a GPU that torch finds, such as cuda:0, got {device!r}"
        ) from error
    return torch.device("cpu") if resolved.type == "cpu" else resolved


def _make_optimizer(
    config: LearnerConfig, main: list[nn.Parameter], compression: list[nn.Parameter]
) -> torch.optim.Optimizer:
    groups = [{"params": main}, {"params": compression}]
    if config.optimizer == "adam":
        betas = (config.adam_beta1, config.adam_beta2)
        return torch.optim.Adam(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
    return torch.optim.RMSprop(
        groups,
        lr=config.learning_rate,
        alpha=config.rmsprop_decay,
        eps=config.rmsprop_epsilon,
        momentum=config.rmsprop_momentum,
    )
