"""The scripts of pages, function by function, in Node where it is installed; see test_browser_*.py for whole pages."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reports.pages

NODE = shutil.which("node") or shutil.which("nodejs")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")
SCRIPTS = ("page.js", "charts.js", "memory.js", "choices.js", "actions.js", "episode.js")
BROWSER = """
const made = () => ({
  attributes: {}, children: [], style: {}, dataset: {}, value: "mean", clientWidth: 400, isConnected: true,
  append(...nodes) { this.children.push(...nodes); }, replaceChildren(...nodes) { this.children = nodes; },
  setAttribute(name, value) { this.attributes[name] = String(value); }, addEventListener() {},
});
const known = {};
const document = {
  createElement: (name) => ({ ...made(), name }), createElementNS: (_, name) => ({ ...made(), name }),
  getElementById: (id) => (known[id] ??= made()), addEventListener() {}, querySelectorAll: () => [],
  body: { dataset: {} },
};
const window = { devicePixelRatio: 1, addEventListener() {} };
class ResizeObserver { observe() {} }
let DATA;
"""
"""As much of a browser as the functions need: elements that keep what they are given."""


def evaluated(*lines: str, scripts_of_page: Sequence[str] = SCRIPTS, **values: Any) -> Any:
    """The value of the last of some lines of JavaScript, which is an expression, as JSON has it.

    The functions of the pages can be used, and `values` as constants of their names.
    """
    folder = Path(reports.pages.__file__).parent
    texts = [(folder / name).read_text() for name in scripts_of_page]
    scripts = [text.removesuffix("\nstart();\n").removesuffix("\nrender();\nstayLive(render);\n") for text in texts]
    scripts[0] = scripts[0].replace('"use strict";', "")
    constants = [f"const {name} = {json.dumps(value)};" for name, value in values.items()]
    *statements, expression = lines
    output = f"console.log(JSON.stringify({expression}));"
    program = "\n".join([BROWSER, *scripts, *constants, *statements, output])
    assert NODE
    found = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_a_curve_is_interrupted_where_values_are_missing() -> None:
    """A move of the pen begins each part, and a value alone is a dot."""
    y = [None, 1.0, 2.0, None, None, 3.0, None, 4.0, 5.0, 6.0, None]
    chart = "const chart = new LineChart(made(), [{ name: 'a', color: 'red', x: y.map((_, at) => at), y }]);"

    def drawn(kind: str) -> Any:
        """Attributes of the chart's elements of a kind."""
        elements = f"chart.svg.children.filter(({{ name }}) => name === '{kind}')"
        return evaluated(chart, f"{elements}.map(({{ attributes }}) => attributes)", y=y)

    path, *_ = drawn("path")
    assert "".join(letter for letter in path["d"] if letter in "ML") == "MLMMLL"

    # The dot is at place 5 of 0 to 10, between the margins of the chart.
    width, margin_left, margin_right = 400, 52, 8
    middle = margin_left + (width - margin_right - margin_left) * 5 / 10
    assert [float(dot["cx"]) for dot in drawn("circle")] == [middle]

    smooth = evaluated("smoothed({ y, low: y, high: null }, 0.5)", y=y)
    is_missing = [value is None for value in y]
    assert [value is None for value in smooth["y"]] == is_missing
    assert [value is None for value in smooth["low"]] == is_missing


def test_a_smoothed_curve_begins_anew_where_another_stage_does() -> None:
    line = {"x": [0, 1, 2, 3], "y": [8.0, 8.0, 2.0, 2.0], "low": None, "high": None}
    assert evaluated("smoothed(line, 1, [2]).y", line=line) == pytest.approx([8, 8, 2, 2])
    through = evaluated("smoothed(line, 1).y", line=line)
    assert 2 < through[2] < 8


TELL = """
const all = (node, name) => [
  ...(node.name === name ? [node] : []), ...(node.children || []).flatMap((child) => all(child, name)),
];
const texts = (node) => all(node, "text").map(({ textContent }) => textContent);
"""
"""Functions that find the nodes of a kind, and the texts of a chart."""


def test_the_performance_profile_is_never_smoothed() -> None:
    """The slider is that of the learning curves. A step from 1 to 0 has a move of the pen and two heights."""
    x = list(range(101))
    y = [float(place < 50) for place in x]
    profile = {"name": "a", "index": 0, "x": x, "y": y, "low": [None] * 101, "high": [None] * 101}
    score = {"name": "a", "index": 0, "value": 1, "low": None, "high": None, "text": "1", "small": "", "points": [1]}
    data = {"unit": "frames", "scale": "return", "filters": {}, "panels": [], "lines": [], "lower": False}
    data |= {"profiles": [profile], "scores": [score], "finished": True}
    begin = f"DATA = {json.dumps(data)}; CHOSEN.smoothing = 1; {TELL} render();"
    path = "all(get('profile'), 'path').map(({ attributes }) => attributes.d)"
    drawn = evaluated(begin, path, scripts_of_page=("page.js", "charts.js", "comparison.js"))
    assert [len({point.split()[1] for point in line.lstrip("M").split("L")}) for line in drawn] == [2]


def test_rows_without_a_time_are_not_drawn_over_time() -> None:
    series = {"name": "a", "x": [1, 2, 3], "time": [None, None, 60], "y": [5, 6, 7]}
    begin = "CHOSEN.axis = 'time'; CHOSEN.smoothing = 0; const host = made();"
    board = "new Board(made(), { x: 'frames', time: 'time' }).add(host, { title: 't', series: [series] });"
    dots = "all(host, 'circle').map(({ attributes }) => Number(attributes.cx))"
    assert evaluated(TELL, begin, board, dots, series=series) == [400 - 8]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (10_850, 11_150, ["10.9 k", "11 k", "11.1 k"]),
        (0, 20_000, ["0", "5000", "10 k", "15 k", "20 k"]),
        (0, 1, ["0", "0.5", "1"]),
        (100, 101, ["100", "100.5", "101"]),
        (0, 2e6, ["0", "500 k", "1 M", "1.5 M", "2 M"]),
        (0, 0.002, ["0", "5e−4", "1e−3", "1.5e−3", "2e−3"]),
    ],
)
def test_labels_of_ticks_have_the_digits_of_their_step(low: float, high: float, expected: list[str]) -> None:
    assert evaluated("tickTexts(ticks(low, high, 4))", low=low, high=high) == expected


def test_large_numbers_with_an_interval_have_its_digits() -> None:
    """Up to a million, as the tables have them."""
    numbers = "[withInterval(12345.6, 12340, 12350), withInterval(2e6, 1e6, 3e6)]"
    assert evaluated(numbers) == [["12346", "12340", "12350"], ["2 M", "1 M", "3 M"]]


def test_a_variant_that_has_thin_lines_alone_is_named_once() -> None:
    thin = {"name": "thin", "color": "red", "thin": True, "x": [1, 2], "y": [1, 2]}
    thick = {"name": "thick", "color": "blue", "x": [1, 2], "y": [3, 4]}
    series = [thin, thin, {**thick, "thin": True}, thick]
    chart = "const legend = made(); new LineChart(made(), series, { legend });"
    names = "legend.children.map(({ children }) => children[1])"
    assert evaluated(chart, names, series=series) == ["thin ", "thick "]
    numbers = "legend.children.map(({ children }) => children.length)"
    assert evaluated(chart, numbers, series=series) == [2, 3], "no value of one of several runs"


@pytest.mark.parametrize("width", [360, 1132])
def test_a_long_name_leaves_room_for_the_score(width: int) -> None:
    row = {"name": f"compressive rate 4 {'x' * 140} 128", "color": "red", "value": 5, "low": 4, "high": 6}
    row |= {"points": [4, 6], "text": "5.0", "small": "[4.0, 6.0]"}
    chart = f"const host = {{ ...made(), clientWidth: {width} }}; dotChart(host, [row]);"
    of = "all(host, 'text').filter(({ attributes }) => /name|value/.test(attributes.class))"
    name, number = evaluated(
        TELL, chart, f"{of}.map((node) => [node.textContent, node.attributes.x, node.children])", row=row
    )
    assert name[0].startswith("compressive rate")
    assert name[0].endswith("x 128")
    assert "…" in name[0]
    assert 8 + 7 * len(name[0]) <= float(number[1]) - 8.5 * len(number[0])
    assert name[2][0]["textContent"] == row["name"]
    assert evaluated("[middleLeftOut('abcdef', 6), middleLeftOut('abcdefg', 6)]") == ["abcdef", "abc…fg"]


@pytest.mark.parametrize(("episodes", "error"), [(1, None), (2, 0.1)])
def test_the_note_on_attention_speaks_of_what_is_drawn(episodes: int, error: float | None) -> None:
    bars = [{"kind": "memory", "name": f"memory {index} of 2", "mean": 0.5, "error": error} for index in (1, 2)]
    data = {"buckets": {"bars": bars, "steps": 30, "episodes": episodes, "full": True}}
    begin = f"DATA = {json.dumps(data)}; buckets();"
    parts = "[get('bucketnote').textContent, get('buckets').children[0].attributes['aria-label']]"
    note, label = evaluated(begin, parts, scripts_of_page=("page.js", "charts.js", "report.js"))
    assert ("30 steps of 1 episode," in note) == (episodes == 1)
    assert ("30 steps of 2 episodes," in note) == (episodes == 2)
    assert ("standard error" in note) == (error is not None)
    assert label == "attention by bucket of memory; memory 1 of 2 50 %; memory 2 of 2 50 %"


def test_stages_are_named_where_there_is_room() -> None:
    stages = [{"from": 0, "to": 1, "label": "stage 1", "plain": True}, {"from": 1, "to": 9, "label": "stage 2"}]
    series = "[{ name: 'a', color: 'red', x: [0, 5, 10], y: [1, 2, 3] }]"
    chart = f"const chart = new LineChart(made(), {series}, {{ bands: stages }});"
    shown = "chart.svg.children.filter(({ textContent }) => /stage/.test(textContent)).map((node) => node.textContent)"
    assert evaluated(chart, shown, stages=stages) == ["stage 2"]
    shaded = "chart.svg.children.filter(({ name }) => name === 'rect').length"
    assert evaluated(chart, shaded, stages=stages) == 1


def test_names_of_lines_at_one_height_are_at_both_ends() -> None:
    """Also if a curve crosses one of the ends."""
    lines = [{"name": "oracle", "value": 10.0}, {"name": "evaluation", "value": 10.05}]
    series = "[{ name: 'a', color: 'red', x: [0, 1, 2], y: [10, 0, 0] }]"
    texts = "chart.svg.children.filter(({ attributes }) => attributes.class === 'within')"
    chart = f"const chart = new LineChart(made(), {series}, {{ lines }});"
    ends = evaluated(chart, f"{texts}.map(({{ attributes }}) => attributes['text-anchor'])", lines=lines)
    assert ends == ["end", "start"]


def test_stays_in_the_first_room_are_apart() -> None:
    rooms = (0, 0, 1, 1, 0, 2, 0, 0, 0)
    poses = [[0, 0, 0, room] for room in rooms]
    assert evaluated("visits(of)", of={"poses": poses}) == [[0, 1], [4, 4], [6, 8]]
    assert evaluated("visits(of)", of={"poses": None}) == []


def test_runs_of_steps_of_a_cluster_are_named_apart() -> None:
    slots = [{"first": at, "last": at, "cluster": 2, "group": 1, "weight": 0.1} for at in (3, 4, 5, 9, 11, 12)]
    (line,) = evaluated("clusters(slots)", slots=slots)
    assert line == "60 % goes to cluster 2 of group 1, which holds steps 3–5, 9, 11–12."


def test_an_instruction_is_shown_until_there_is_another_one() -> None:
    of = {"instructions": [[0, "go to the ball"], [2, ""], [3, "stop"]]}
    found = evaluated("[0, 1, 2, 3, 9].map((at) => instructed(of, at))", of=of)
    assert found == ["go to the ball", "go to the ball", "", "stop", "stop"]


@pytest.mark.parametrize("yaw", [0, 75, -170])
def test_bearings_grow_to_the_left_in_a_field_with_two_halves(yaw: int) -> None:
    """The player stands at (2, -1); cones stand 5 away from it, at bearings that are known."""
    bearings = [-179, -46, -44, -1, 0, 30, 44, 46, 100]
    things = {}
    for turn in bearings:
        angle = np.radians(turn + yaw)
        things[f"thing {turn}"] = [f"cone, {turn}", 2 + 5 * np.cos(angle), -1 + 5 * np.sin(angle)]
    of = {"poses": [[2, -1, yaw, 0]], "situations": [things | {"known": "cone", "else": ["a cone", 2, 0]}]}

    data = "DATA = { plan: { view: 90 } };"
    found = evaluated(data, "located(of, 0).map((thing) => bearing(of, 0, thing))", of=of)
    assert found == pytest.approx(bearings)
    in_view = [f"cone, {turn}" for turn in bearings if abs(turn) < 45]
    assert evaluated(data, "inView(of, 0).map(({ words }) => words)", of=of) == in_view


def test_the_share_of_attention_to_some_steps() -> None:
    """A slot of several steps gives each the same."""
    slots = [
        {"first": 0, "last": 3, "weight": 0.4},
        {"first": 4, "last": 4, "weight": 0.1},
        {"first": 5, "last": 8, "weight": 0.5},
    ]
    share, equal = evaluated("sharesOf(slots, [2, 5])", slots=slots)
    assert share == pytest.approx(0.4 / 2 + 0.1 + 0.5 / 4)
    assert equal == pytest.approx((1 / 2 + 1 + 1 / 4) / 3)


TWO = {
    "poses": [[0, 0, 0, 0], *([[9, 0, 0, 1]] * 7)],
    "choices": [0, 0, 0, 1, 0, 0, -1, 0],
    "evidence": [None, 1.0, 2.0, 3.0, None, -4.0, -1.0, None],
    "entered": [-1, 1, 1, 1, -1, 5, 5, -1],
}
"""Two choices in one room, at steps 3 and 6, without a way back between them."""


def test_the_verdict_counts_the_steps_since_the_room_was_entered() -> None:
    """Not those of another choice in the same room. Older pages do not say when it was entered: then poses tell."""
    data = "DATA = { plan: { view: 90, rooms: ['a', 'b'] } };"
    said = "[3, 6].map((at) => before(of, at)).map(({ entered, total, decided }) => [entered, total, decided])"
    assert evaluated(data, said, of=TWO) == [[1, 6, 3], [5, -5, 5]]
    assert evaluated(data, said, of=TWO | {"entered": None})[0] == [1, 6, 3]
    belongs = evaluated(data, "of.poses.map((_, at) => choiceOf(of, at) ?? null)", of=TWO)
    assert belongs == [None, 3, 3, 3, None, 6, 6, None]


def test_memory_decided_a_choice_from_100_times_on() -> None:
    logs = [float(np.log(times)) for times in (99, 101, 1 / 99, 1 / 101)]
    assert evaluated("logs.map(verdict)", logs=logs) == ["none", "led", "none", "against"]
    assert evaluated("logs.map(ratio)", logs=logs) == ["99", "100", "0.01", "1/100"]
    assert evaluated("[20, -20].map(ratio)") == ["more than a million", "less than a millionth"]


def test_unusual_is_at_most_one_in_five_on_either_side() -> None:
    """Beside nine numbers, one beyond all of them is unusual; eight are too few to tell."""
    nine = list(range(1, 10))
    eight = list(range(1, 9))
    unusual = evaluated("[0.5, 1.5, 5, 8.5, 9.5].map((number) => rank(number, nine)[2])", nine=nine)
    assert unusual == [True, False, False, False, True]
    assert evaluated("rank(0.5, eight)[2]", eight=eight) is False


def test_quantiles_are_those_of_numpy() -> None:
    values = [1.0, 4.0, 4.5, 10.0]
    shares = [0.0, 0.25, 0.5, 0.9, 1.0]
    found = evaluated("shares.map((share) => quantile(values, share))", values=values, shares=shares)
    assert found == pytest.approx(np.quantile(values, shares))


COLUMNS = [
    {"name": "gear", "size": 3, "low": -1, "high": 1},
    {"name": "throttle", "size": 0, "low": 0, "high": 8},
    {"name": "trim", "size": 0, "low": None, "high": None},
    {"name": "light", "size": 2, "low": 0, "high": 1},
]
ACTED = {
    "values": [0, 0],
    "probabilities": [round(65_535 * share**0.5) for share in (1, 0, 0, 1, 0, 0.2, 0.2, 0.6, 0.8, 0.2)],
    "numbers": {
        "received": [-1, 8, 0, 1, 1, 2, -3.25, 0],
        "means": [4, 1, 6, -3.5],
        "scales": [0.5, 2, 0.5, 1500],
    },
}
"""Two steps of an action of these columns."""


def test_the_action_of_a_step_is_shown_by_column() -> None:
    """The same nodes show the second step after the first one. The text, style and class of each are collected."""
    own = "[textContent ?? '', attributes.style ?? '', attributes.class ?? '']"
    tell = f"({{ textContent, attributes, children }}) => [...{own}, ...children.flatMap(tell)].filter(Boolean)"
    data = f"DATA = {{ columns: {json.dumps(COLUMNS)} }};"
    first, second, brief = evaluated(
        f"const tell = {tell};",
        data,
        "showColumns(of, 0); const nodes = get('columns').children, earlier = nodes.map(tell); showColumns(of, 1);",
        "[earlier, nodes.map(tell), briefly(of, 1)]",
        of=ACTED,
    )
    bars = ["-1", "width: 20%", "20 %", "0", "width: 20%", "20 %"]
    chosen = ["chosen", "1", "width: 60%", "chosen", "60 %"]
    gear = ["column wide-name", "gear", "policy", "60 %", "1", "bars", *bars, *chosen]
    assert sorted(second[0]) == sorted(gear)
    assert first[1] == ["column", "throttle", "track", "left: 50%", "left: 100%", "0", "8", "8"]
    assert second[1] == ["column", "throttle", "track", "left: 75%", "left: 25%", "0", "8", "2"]
    assert second[2] == ["column wide-name", "trim", "−3.5 ± 1500", "policy", "−3.25"]
    assert brief == "1 · 2 · −3.25 · 0"


def test_of_many_values_the_most_probable_and_the_taken_are_shown() -> None:
    """Of 19 values from 5 on 12 are shown: 6 and 22 are the most probable, 23 is the one that was taken."""
    of = {"values": [0], "probabilities": [0, 50, *[10] * 15, 40, 5]}
    column = {"size": 19, "first": 0, "low": 5}
    taken = 23
    chances = evaluated(f"chancesOf(of, column, 0, {taken})", of=of, column=column)
    shown = [value for value, _chance in chances]
    assert len(shown) == 12
    assert shown == sorted(shown)
    assert {6, 22, taken} < set(shown)
    assert 5 not in shown


def test_probabilities_of_a_page_are_stored_as_square_roots() -> None:
    """A small one is not said to be 0."""
    texts = "[65535, 46341, 2536, 830, 1, 0].map((root) => percent(chanceOf(root)))"
    assert evaluated(texts) == ["100 %", "50 %", "0.1 %", "< 0.1 %", "< 0.1 %", "0.0 %"]


def test_columns_know_where_their_numbers_are() -> None:
    found = evaluated("placed(columns).map(({ first, number }) => [first, number])", columns=COLUMNS)
    assert found == [[0, 0], [3, 0], [3, 1], [3, 2]]


def test_many_columns_are_folded() -> None:
    columns = [{"name": f"switch {index}", "size": 2, "low": 0, "high": 1} for index in range(9)]
    of = {"values": [0], "probabilities": [65_535, 0] * 9, "numbers": {"received": [0] * 9, "means": [], "scales": []}}
    opened = "get('columns').children.map(({ attributes }) => 'open' in attributes)"
    for count, is_open in ((8, True), (9, False)):
        data = f"DATA = {{ columns: {json.dumps(columns[:count])} }};"
        assert evaluated(data, "showColumns(of, 0);", opened, of=of) == [is_open] * count

    nine = f"DATA = {{ columns: {json.dumps(columns)} }};"
    assert evaluated(nine, "briefly(of, 0)", of=of).endswith("0 …")


def test_a_step_has_one_place_in_charts_and_bars_and_is_found_there() -> None:
    """In what is 400 pixels wide, behind the labels of an axis or not; the last step is 8 pixels before the end."""
    chart = "const chart = new LineChart(made(), [{ name: 'a', color: 'red', x: steps, y: steps }], shown);"
    places = evaluated(
        "episode = { values: steps };",
        "const shown = { inset: { left: AXIS, right: INSET }, domain: [0, steps.length - 1] };",
        chart,
        "steps.map((at) => [chart.x(at), across(400, at, AXIS), stepAt(across(400, at, AXIS), 400, AXIS),"
        " across(400, at), stepAt(across(400, at), 400)])",
        steps=list(range(31)),
    )
    for at, (in_chart, in_bars, step, in_marks, marked) in enumerate(places):
        assert in_chart == pytest.approx(in_bars)
        assert in_bars == pytest.approx(48 + (400 - 48 - 8) * at / 30)
        assert in_marks == pytest.approx(8 + (400 - 8 - 8) * at / 30)
        assert step == marked == at
