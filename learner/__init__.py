"""Everywhere gradients of agents happen: V-trace, losses, learners and their groups. No environments, no files."""
