"""A run of an agent in progress: configuration, training loop, evaluation and sweeps. No command lines."""
