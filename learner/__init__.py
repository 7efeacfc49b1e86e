"""Everywhere gradients happen: V-trace, losses, the learner, checkpoints and metrics. No environments."""
