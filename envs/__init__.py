"""Everything an agent senses. `make_vector` turns a spec such as "rooms:small" into a batch of environments.

A spec is "kind:name" or "kind:name,field=value,...". The environments are in `rooms/` and `dmlab.py`; what their scores
mean is in `scores.py`.
"""

from envs.registry import make_vector, parse_spec, prepare
from envs.scores import human_normalised, oracle_normalised, reference_scores

__all__ = ["human_normalised", "make_vector", "oracle_normalised", "parse_spec", "prepare", "reference_scores"]
