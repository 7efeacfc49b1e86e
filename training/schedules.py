"""How learning rate and costs change when a run is resumed with another configuration."""

from training.config import RunConfig
from training.console import quantity


def describe_jump(before: RunConfig, after: RunConfig, frames: int) -> str:
    """Says how learning rate and costs change when a run continues with another configuration.

    Returns:
        one line; empty if all are, after so many frames, what they would be with the configuration from before.
    """
    changes = list[str]()
    old_rates = scheduled_rates(before, frames)
    new_rates = scheduled_rates(after, frames)
    for name in old_rates:
        # As they are shown: smaller changes are none.
        old = f"{old_rates[name]:.3g}"
        new = f"{new_rates[name]:.3g}"
        if old != new:
            changes.append(f"the {name} changes from {old} to {new}")
    if not changes:
        return ""

    line = " and ".join(changes)
    old_end = before.schedule_end
    new_end = after.schedule_end
    has_schedule = before.has_schedule or after.has_schedule
    if has_schedule and old_end != new_end:
        line += f": schedules end at {quantity(new_end)} frames now, not at {quantity(old_end)}"
        line += f"; --schedule-frames {old_end} keeps the old end"
    return line


def scheduled_rates(config: RunConfig, frames: int) -> dict[str, float]:
    """Learning rate and costs after so many frames."""
    progress = min(1.0, frames / config.schedule_end)
    learner = config.learner
    return {
        "learning rate": learner.learning_rate_at(progress),
        "entropy cost": learner.entropy_cost_at(progress),
        "teacher's cost": learner.teacher_cost_at(progress),
    }
