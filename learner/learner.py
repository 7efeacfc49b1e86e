"""IMPALA's learner: trajectories in, gradients, new weights out. No processes, files or environments.

Several learners that share each batch are connected by `communicator` and placed on a cluster by `group`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agent.core.state import detach_state, index_state, leaves, state_to
from agent.popart import PopArt
from agent.precision import autocast, resolve_precision
from agent.trajectory import Trajectory, loss_mask, validate
from learner import losses
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.optimization import Measured, Optimization, not_finite, snapshot
from learner.vtrace import VTraceReturns, action_log_probs, vtrace


class Learner:
    """Trains an agent on trajectories with V-trace.

    The loss is policy gradient + baseline_cost * baseline - entropy_cost * entropy + the agent's own losses. The
    compression parameters receive gradients from their own loss only, which gives no gradient to other parameters;
    therefore their gradients are clipped separately.

    Args:
        agent: called as `agent(observation, last_action, last_reward, reset, state)`; has `compression_parameters()`.
            It is moved to the device.
        total_steps: agent steps at which the schedules end.
        comm: the learners that share each batch. They must have equal weights and get shards of equally many rows;
            their updates then equal those of one learner on all rows.
        fused: whether Adam is the fused one, which updates that are not read need; None for a GPU only.
        rows: most rows of an update; a trajectory with more is learned from in several. None for no limit.

    Attributes:
        version: number of updates, which is the version of the weights.
        steps: agent steps learned from, by the loss mask and without replayed rows; without those of updates that
            were not read.

    Raises:
        ValueError: if `total_steps` is not positive, a compression parameter is not a parameter of the agent, or the
            optimizer has no fused version.
    """

    has_whole_state = True
    """See `Replica`."""
    episodes: Sequence[Any] = ()
    """See `Replica`."""

    def __init__(
        self,
        agent: nn.Module,
        config: LearnerConfig,
        total_steps: int,
        comm: Communicator | None = None,
        fused: bool | None = None,
        rows: int | None = None,
    ) -> None:
        if total_steps < 1:
            raise ValueError(f"total_steps: expected at least 1, got {total_steps}")
        self.config, self.total_steps = config, total_steps
        self.device = resolve_device(config.device)
        self.agent = agent.to(self.device)
        self.precision = resolve_precision(config.precision, self.device)
        if config.compile:
            agent.vision.compile(dynamic=False)  # type: ignore[union-attr]
        self.version, self.steps, self.rows = 0, 0, rows
        self._comm = comm or Communicator()
        make_optimizer = functools.partial(_make_optimizer, config, self.device.type == "cuda", fused)
        self._optimization = Optimization(self.agent, make_optimizer, config.max_gradient_norm, self._comm)
        value = getattr(agent, "value", None)
        self._popart = value if isinstance(value, PopArt) else None
        self._targets: Tensor | None = None  # of the present update, see `PopArt.sums`
        self._unread: list[tuple[Measured, dict[str, float]]] = []  # of each update, with its schedules

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self.config.learning_rate_at(self._progress)

    @property
    def entropy_cost(self) -> float:
        """The weight of the entropy bonus in the next update."""
        return self.config.entropy_cost_at(self._progress)

    @property
    def _progress(self) -> float:
        return min(1.0, self.steps / self.total_steps)

    def update(self, trajectory: Trajectory, read: bool = True) -> dict[str, float]:
        """Learns from one batch or, of more than `rows` rows, from one after the other.

        Args:
            trajectory: T steps of B rows on any device, this learner's shard of the batch; see `agent.trajectory`.
            read: of several batches, only the last is read where that is possible. If false, nothing is read from the
                device, so that nothing waits for it (except for instructions, and for a trajectory elsewhere), and
                nothing is returned. The device itself skips an update that is not finite. Until the next update that
                is read, or `settle`, `version` counts skipped updates too, and `steps`, on which the schedules depend,
                stays.

        Returns:
            metrics of the whole batch by name: losses as they enter the total (weighted and reduced), entropy in nats a
            step, gradient norms before clipping, importance weights, mean values, policy lag in versions, learning
            rate, entropy cost.

        Raises:
            ValueError: if the shapes of the trajectory or of the agent's output are wrong, or `read` is false without a
                fused optimizer.
            NotFinite: if a loss or a gradient is not finite; names which. Weights, optimizer and counters are
                unchanged. All learners that share the batch raise it. After updates that were not read, see `settle`.
            PeerLost: if another learner was lost; nothing was changed.
        """
        if not read and not self._optimization.fused:
            raise ValueError("read: expected true, because the optimizer is not fused (see `fused`), got false")
        count, _ = validate(trajectory)
        if self.rows and count > self.rows:
            parts = [index_state(trajectory, part) for part in split(count, self.rows)]
            for part in parts[:-1]:
                self.update(part, read=not self._optimization.fused)
            return self.update(parts[-1], read)
        trajectory = state_to(trajectory, self.device)
        self.agent.train()
        self._optimization.zero_grad()
        sums = self._losses(trajectory)
        sums["loss/total"].backward()
        lag = (self.version - trajectory.version) * _fresh(trajectory)
        others = {"policy_lag/max": self._comm.max(lag.max())}
        schedules = {"learning_rate": self.learning_rate, "entropy_cost": self.entropy_cost}
        # Before this, only instructions wait for the device, first of all (`Agent.forward`).
        if read and not self._unread:
            fields = functools.partial(self._not_finite_fields, trajectory)
            metrics = self._optimization.step(sums, self.learning_rate, "update", self.version + 1, fields, others)
            self._follow()
            self.version += 1
            self.steps += round(metrics.pop("steps"))
            return metrics | schedules
        self._unread.append((self._optimization.step_unread(sums, self.learning_rate, others), schedules))
        self._follow()
        self.version += 1
        return self.settle() if read else {}

    def _follow(self) -> None:
        """Moves PopArt's statistics after a step, on all learners alike."""
        if self._popart and self._targets is not None:
            self._popart.follow(self._targets, self.config.popart_rate, self._optimization.skipped)

    def settle(self) -> dict[str, float]:
        """Reads, at once, the updates that were not read, so that `version` and `steps` are exact.

        Returns:
            the metrics of the last of these updates; see `update`. Empty if there are none.

        Raises:
            NotFinite: if updates were skipped because they were not finite; its `number` is the first one's. All other
                updates were made, and the counters are exact. All learners that share the batches raise it.
        """
        unread, self._unread = self._unread, []
        if not unread:
            return {}
        first, skipped = self.version - len(unread) + 1, dict[int, str]()
        values = iter(torch.cat([measured.values for measured, _ in unread]).tolist())
        for number, ((names, _), schedules) in enumerate(unread, first):
            metrics = dict(zip(names, values)) | schedules
            steps = metrics.pop("steps")
            if reason := not_finite(metrics):
                skipped[number] = reason
            else:
                self.steps += round(steps)
        self.version -= len(skipped)
        if skipped:
            number, reason = next(iter(skipped.items()))
            skips = f"Skipped: {len(skipped)} of {len(unread)} updates."
            raise NotFinite(f"update {number} is not finite: {reason}. {skips}", number)
        return metrics

    @property
    def counters(self) -> dict[str, int]:
        """What the learner counts, by attribute; after `settle`."""
        self.settle()
        return {"version": self.version, "steps": self.steps}

    def replicate(self) -> Callable[[Communicator, str], "Learner"]:
        """A function, which can be pickled, that makes this learner anew for a communicator and a device."""
        return functools.partial(_replica, self.agent, self.config, self.total_steps)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the agent's parameters and buffers on the CPU, by name."""
        return snapshot(self.agent)()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Restores what `weights` returned."""
        self.agent.load_state_dict(weights)

    def snapshot(self) -> Callable[[], dict[str, Tensor]]:
        """Takes the weights now; the function returns them as `weights` does, while other updates are made."""
        return snapshot(self.agent)

    def follow(self) -> None:
        """Nothing: the weights of this process are the newest; see `LearnerGroup.follow`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: copies, on the CPU, of weights and optimizer state, and the counters.

        After `settle`, which may raise `NotFinite`."""
        return {"weights": self.weights(), "optimizer": self._optimization.state_dict(), **self.counters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned. Configuration (hyper-parameters of the optimizer included) and
        `total_steps` stay those of this learner. Raises a RuntimeError or ValueError for the state of another agent."""
        self.agent.load_state_dict(state["weights"])
        self._optimization.load_state_dict(state["optimizer"])
        self.version, self.steps, self._unread = int(state["version"]), int(state["steps"]), []

    def _losses(self, trajectory: Trajectory) -> dict[str, Tensor]:
        """Forward pass; scalars by metric, on the device, whose sums over the learners are those of the batch."""
        config = self.config
        with autocast(self.device, self.precision):
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
        value, head = output.value, self._popart
        scale: Tensor | float = 1.0
        if head:
            task = trajectory.actor_id % head.out_features  # actor i plays task i modulo their number
            value, scale = head.of_task(value, task), head.scale[task][:, None].to(value.dtype)
        if value.shape != trajectory.reward.shape:
            expected, actual = list(trajectory.reward.shape), list(value.shape)
            raise ValueError(f"value of the agent: expected {expected}, got {actual}")

        mask = loss_mask(trajectory)
        values, actions = value[:, :-1], trajectory.action
        steps = mask.sum()
        # Turns a mean over the masked steps of the shard into its share of the mean over those of the batch.
        share = steps.clamp(min=1).to(values.dtype) / self._comm.sum(steps).clamp(min=1)
        weight = share if config.reduction == "mean" else 1.0
        returns = self._returns(trajectory, logits, value, mask)
        policy = losses.policy_gradient_loss(logits, actions, returns.pg_advantages / scale, mask, config.reduction)
        baseline = losses.baseline_loss(values / scale, returns.vs / scale, mask, config.reduction)
        entropy = losses.entropy_loss(logits, mask, config.reduction)
        auxiliary = losses.reduce_losses(output.losses, self._comm.sum)
        parts = {
            "loss/policy": weight * policy,
            "loss/baseline": weight * (config.baseline_cost * baseline),
            "loss/entropy": weight * (self.entropy_cost * entropy),
            **{f"loss/{name}": value for name, value in auxiliary.items()},
        }
        parts["loss/total"] = torch.stack([value.float() for value in parts.values()]).sum()
        if head:
            self._targets = self._comm.sum(head.sums(returns.vs, mask, task))
        with torch.no_grad():
            age, fresh = self.version - trajectory.version, _fresh(trajectory)
            parts |= {
                "steps": (mask & fresh[:, None]).sum(),
                "policy/entropy": share * losses.reduce(losses.entropy(logits), mask, "mean"),
                "value/mean": share * losses.reduce(values, mask, "mean"),
                "value/target_mean": share * losses.reduce(returns.vs, mask, "mean"),
                "importance/mean_rho": share * returns.mean_rho,
                "importance/clipped_fraction": share * returns.clipped_fraction,
                "policy_lag/mean": _mean(age, fresh) / self._comm.size,
            }
            if (replayed := trajectory.replayed) is not None:
                parts |= {"replay/share": replayed.float().mean(), "replay/age": _mean(age, replayed)}
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
                mask=mask,
                clip_rho_threshold=config.clip_rho,
                clip_c_threshold=config.clip_c,
                clip_pg_rho_threshold=config.clip_pg_rho,
                lambda_=config.lambda_,
            )

    def _not_finite_fields(self, trajectory: Trajectory) -> list[str]:
        """For errors: the fields of the trajectory that are not finite in the shard of any learner."""
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        counts = [sum(((~leaf.isfinite()).sum() for leaf in leaves(field)), start=zero) for field in trajectory]
        totals = self._comm.sum(torch.stack(counts)).tolist()
        return [name for name, total in zip(trajectory._fields, totals) if total]


def _fresh(trajectory: Trajectory) -> Tensor:
    """[B] bool: true for rows that are learned from for the first time."""
    every = torch.ones_like(trajectory.version, dtype=torch.bool)
    return every if trajectory.replayed is None else ~trajectory.replayed


def _mean(values: Tensor, rows: Tensor) -> Tensor:
    """The mean of values [B] over the rows [B] bool; 0 for none."""
    return (values * rows).sum() / rows.sum().clamp(min=1)


def split(count: int, most: int) -> list[slice]:
    """Rows in as few parts as possible of at most `most` rows, as equal as possible."""
    parts = -(-count // most)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _replica(agent: nn.Module, config: LearnerConfig, total_steps: int, comm: Communicator, device: str) -> Learner:
    return Learner(agent, dataclasses.replace(config, device=device), total_steps, comm)


def resolve_device(device: str) -> torch.device:
    """The named device; "auto" is a GPU if there is one, else the CPU.

    Raises:
        ValueError: if torch cannot compute on such a device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.ones(1, device=resolved).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        expected = "auto, cpu or a GPU that torch finds, such as cuda:0"
        raise ValueError(f"device: expected {expected}, got {device!r}") from error
    return torch.device("cpu") if resolved.type == "cpu" else resolved


def _make_optimizer(
    config: LearnerConfig, on_gpu: bool, fused: bool | None, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        betas = (config.adam_beta1, config.adam_beta2)
        kernel = (on_gpu if fused is None else fused) or None  # not False, which would be a kernel for each parameter
        return torch.optim.Adam(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, fused=kernel)
    if fused:
        raise ValueError(f"fused: expected false for {config.optimizer}, which has no fused version, got true")
    return torch.optim.RMSprop(
        groups,
        lr=config.learning_rate,
        alpha=config.rmsprop_decay,
        eps=config.rmsprop_epsilon,
        momentum=config.rmsprop_momentum,
    )
