"""Correct choices by the reach of a memory: the means of a table of runs, and the figure of the README.

    python -m benchmarks.reach                                  (the means of results/reach.csv; nothing is written)
    python -m benchmarks.reach RUN ... --table results/reach.csv --plot docs/result.svg    (adds runs, draws the figure)

The runs are those of `compressive compare --preset memory`, with `--rates 1 2 4 8` and with `--cores transformer-xl`,
and of Transformer-XL with as many slots as the reach of rate 8 (`compressive launch --preset memory --core
transformer-xl --agent.core.memory-size 136`). Choices come after delays of 16, 32, 64 and 128 steps, equally often; who
remembers nothing of a delay guesses one of two objects.
"""

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from agent.core import CompressiveTransformerConfig
from benchmarks.common import run
from storage.files import read_json
from storage.run import Run
from training.config import core_name
from training.plain import read_config
from training.presets import make_preset

DELAYS = (16, 32, 64, 128)
"""Steps between the example and the choice."""
TABLE = Path("results/reach.csv")
PRESET = "memory"
CORES = ("compressive", "transformer-xl")
EPISODES = 128
"""Of the evaluation of each run."""


class Row(NamedTuple):
    """Of one run. slots: of memory and compressed memory, to which a step attends beside its segment.

    rate: the compression rate; 0 without compression. reach: the steps before the segment that are remembered. correct:
    the share of correct choices in percent.
    """

    core: str
    rate: int
    slots: int
    reach: int
    seed: int
    correct: float


class Bar(NamedTuple):
    """Of the runs of one variant, their correct choices in percent; and those if all within the reach were known."""

    name: str
    slots: int
    reach: int
    correct: tuple[float, ...]
    expected: float


@dataclass
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Finished runs, which take the places of their rows in the table."""
    table: Path | None = None
    """File to which the runs are added; a new one, if it is not there. By default results/reach.csv is only read."""
    plot: Path | None = None
    """File of the figure."""


def measure(options: Options) -> dict[str, Any]:
    rows = _read(options.table or TABLE)
    rows |= {_key(row): row for row in map(row_of, options.runs)}
    if not rows:
        raise ValueError(f"--table: expected a table of runs, or runs to make one, got {options.table or TABLE}")
    bars = bars_of(list(rows.values()))
    if options.table:
        _write(options.table, [rows[key] for key in sorted(rows)])
    if options.plot:
        options.plot.write_text(drawn(bars))
    return {"bars": [bar._asdict() | {"mean": statistics.fmean(bar.correct)} for bar in bars]}


def row_of(path: Path) -> Row:
    """The row of a finished run.

    Raises:
        ValueError: if the run was trained or evaluated otherwise than those of the table.
        FileNotFoundError: if there is no run, or no evaluation of it.
    """
    finished = Run(path)
    config = read_config(finished)
    evaluation = read_json(finished.evaluation_file())
    preset = make_preset(PRESET, "compressive")
    terms = {  # what is expected, and what the run has
        "preset": (PRESET, config.preset),
        "env": (preset.env, config.env),
        "environment of the evaluation": (preset.env, evaluation.get("environment")),
        "frames": (preset.frames, config.frames),
        "episodes of the evaluation": (EPISODES, evaluation.get("episodes")),
    }
    for name, (expected, found) in terms.items():
        if found != expected:
            raise ValueError(f"{path}: {name}: expected {expected}, as in the table, got {found}")

    core = config.core_config
    if not isinstance(core, CompressiveTransformerConfig) or core_name(config) not in CORES:
        raise ValueError(f"{path}: core: expected {' or '.join(CORES)}, got {core_name(config)}")
    if len(core.layer_sizes) != 1:
        raise ValueError(f"{path}: num_layers: expected one layer, as in the table, got {len(core.layer_sizes)}")
    (sizes,) = core.layer_sizes
    rate = sizes.rate if sizes.compressed else 0
    correct = 100 * evaluation["correct_choices"]["mean"]
    reach = sizes.memory + sizes.rate * sizes.compressed
    return Row(core_name(config), rate, sizes.memory + sizes.compressed, reach, config.seed, round(correct, 2))


def bars_of(rows: list[Row]) -> list[Bar]:
    """The rows by variant, in the order of the figure."""
    by_variant: dict[tuple[str, int, int, int], list[float]] = {}
    for row in rows:
        variant = (row.core, row.rate, row.slots, row.reach)
        by_variant.setdefault(variant, []).append(row.correct)

    bars = []
    for variant in sorted(by_variant, key=_order):
        _, rate, slots, reach = variant
        name = f"Compressive, rate {rate}" if rate else "Transformer-XL"
        bars.append(Bar(name, slots, reach, tuple(by_variant[variant]), expected(reach)))
    return bars


def _order(variant: tuple[str, int, int, int]) -> tuple[int, int]:
    """Where a variant stands in the figure: by slots, then by rate, which is 0 without compression."""
    _, rate, slots, _ = variant
    return slots, rate


def expected(reach: int) -> float:
    """Correct choices in percent of who knows all that is within the reach, and guesses after longer delays."""
    known = sum(delay <= reach for delay in DELAYS) / len(DELAYS)
    return 100 * (known + (1 - known) / 2)


def _key(row: Row) -> tuple[Any, ...]:
    return row[:-1]


def _read(table: Path) -> dict[tuple[Any, ...], Row]:
    if not table.exists():
        return {}
    found = {}
    with table.open(newline="") as file:
        for line in csv.DictReader(file):
            row = Row(
                core=line["core"],
                rate=int(line["rate"]),
                slots=int(line["slots"]),
                reach=int(line["reach"]),
                seed=int(line["seed"]),
                correct=float(line["correct"]),
            )
            found[_key(row)] = row
    return found


def _write(table: Path, rows: list[Row]) -> None:
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1f2328 }
    .small { font-size: 12px; fill: #59636e }
    .grid { stroke: #d1d9e0 }
    .other { fill: #9aa4ae }
    .ours { fill: #0969da }
    .missed { fill: none; stroke: #cf222e; stroke-dasharray: 3 3 }
    .seed { fill: #ffffff; stroke: #1f2328; stroke-width: 1.3 }
    .expected { stroke: #cf222e; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .small { fill: #9198a1 }
      .grid { stroke: #3d444d }
      .other { fill: #656c76 }
      .ours { fill: #4493f8 }
      .missed, .expected { stroke: #ff7b72 }
      .seed { fill: #0d1117; stroke: #f0f6fc }
    }
"""
LEFT = 300.0
RIGHT = 690.0
"""Pixels from the left, of 50 % and of 100 %."""
FIRST = 69
EACH = 34
"""Pixels from the top to the first bar, and from one bar to the next."""


def drawn(bars: list[Bar]) -> str:
    """The figure as SVG, for light and dark pages."""
    bottom = FIRST + EACH * len(bars)
    height = bottom + 62
    said = ", ".join(f"{bar.name} with {bar.slots} slots {statistics.fmean(bar.correct):.1f} %" for bar in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760" height="{height}"'
        ' role="img" aria-labelledby="t d">',
        '<title id="t">Correct choices by core and reach</title>',
        f'<desc id="d">{said}.</desc>',
        f"<style>{STYLE}</style>",
        '<text x="12" y="24" font-weight="600">Correct choices on a task that needs up to 130 steps of memory</text>',
        '<text class="small" x="12" y="48">core</text>',
        '<text class="small" x="168" y="48">slots</text>',
        '<text class="small" x="222" y="48">reach</text>',
    ]
    for percent in range(50, 101, 10):
        x = _across(percent)
        parts.append(f'<line class="grid" x1="{x}" y1="60" x2="{x}" y2="{bottom - 4}"/>')
        parts.append(f'<text class="small" x="{x}" y="48" text-anchor="middle">{percent} %</text>')
    for index, bar in enumerate(bars):
        parts += _bar(bar, FIRST + EACH * index)
    legend = bottom + 18
    counts = sorted({len(bar.correct) for bar in bars})
    seeds = " to ".join(str(count) for count in dict.fromkeys([counts[0], counts[-1]]))
    preset = make_preset(PRESET, "compressive")
    parts += [
        f'<circle class="seed" cx="18" cy="{legend - 4}" r="3.4"/>',
        f'<text class="small" x="28" y="{legend}">one seed; bars are means of {seeds}</text>',
        f'<line class="expected" x1="256" y1="{legend - 13}" x2="256" y2="{legend + 4}"/>',
        f'<text class="small" x="266" y="{legend}">expected if all within reach is remembered and the rest guessed; '
        "dashed: missed</text>",
        f'<text class="small" x="12" y="{legend + 24}">{preset.env}, {preset.frames // 10**6} M frames, {EPISODES} '
        "episodes of evaluation. Beside the slots, a step sees its segment.</text>",
        "</svg>\n",
    ]
    return "\n  ".join(parts[:-1]) + "\n" + parts[-1]


def _across(percent: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * (percent - 50) / 50, 1)


def _bar(bar: Bar, top: int) -> list[str]:
    """A bar with its text, its seeds, and what is expected."""
    mean = statistics.fmean(bar.correct)
    middle = top + 10
    kind = "ours" if bar.name.startswith("Compressive") else "other"
    parts = [
        f'<text x="12" y="{top + 15}">{bar.name}</text>',
        f'<text class="small" x="168" y="{top + 15}">{bar.slots}</text>',
        f'<text class="small" x="222" y="{top + 15}">{bar.reach} steps</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{round(_across(mean) - LEFT, 1)}" height="20"/>',
    ]
    if bar.expected > mean + 1:
        width = round(_across(bar.expected) - _across(mean), 1)
        parts.append(f'<rect class="missed" x="{_across(mean)}" y="{top + 1}" width="{width}" height="18"/>')
    for correct in bar.correct:
        parts.append(f'<circle class="seed" cx="{_across(correct)}" cy="{middle}" r="3.4"/>')
    x = _across(bar.expected)
    parts.append(f'<line class="expected" x1="{x}" y1="{top - 3}" x2="{x}" y2="{top + 23}"/>')
    parts.append(f'<text x="704" y="{top + 15}">{mean:.1f} %</text>')
    return parts


if __name__ == "__main__":
    run(measure, Options)
