"""A run's metrics as gauges of its Ray cluster: the numbers of TensorBoard for the dashboard, Prometheus and Grafana.

Where nodes run Ray's agent (the extra `cluster`), each serves the gauges of its processes; elsewhere nobody reads them.
"""

import math
import re
from collections.abc import Mapping

from ray.util.metrics import Gauge


class RayGauges:
    """One gauge a metric, tagged with its run: `episode/return` becomes `ray_compressive_episode_return{run="..."}`.

    Ray adds its prefix itself. A gauge keeps its last value, and vanishes with the process that set it.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.gauges: dict[str, Gauge] = {}

    def set(self, metrics: Mapping[str, float]) -> None:
        """Shows a row of metrics, less what is not finite."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                continue
            if name not in self.gauges:
                gauge = Gauge(gauge_name(name), f"{name} of a run", ("run",))
                self.gauges[name] = gauge.set_default_tags({"run": self.run})
            self.gauges[name].set(float(value))


def gauge_name(metric: str) -> str:
    """A metric's name in letters, digits and underscores, all that Ray and Prometheus allow."""
    return f"compressive_{re.sub('[^a-zA-Z0-9_]', '_', metric)}"
