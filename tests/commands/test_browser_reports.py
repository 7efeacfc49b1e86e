"""Reports and comparisons in a browser: charts, groups that open, narrow screens, accessibility and printing."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from commands import main
from reports.comparison_page import COLORS
from reports.report import GROUPS
from tests.commands.browser import PAPER, Tab, assert_accessible, show
from tests.commands.cli import Commands
from tests.commands.test_statistics import DIGITS
from training.config import RunConfig

KINDS = ["episodes", "report", "comparison"]


@pytest.fixture(scope="module")
def pages(finished: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, of the finished run."""
    run, _ = finished
    folder = tmp_path_factory.mktemp("pages")
    main(["report", str(run), "--episodes", "1", "--output", str(folder / "run.html")])
    main(["compare", "--from", str(run), "--folder", str(folder)])
    return {
        "episodes": run / "videos" / "final.html",
        "report": folder / "run.html",
        "comparison": folder / "report.html",
    }


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    """The colors that a person prefers."""
    return request.param


@pytest.fixture
def telephone(tab: Tab, scheme: str) -> Tab:
    """A tab with the screen of a telephone."""
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": 390, "height": 844})
    return tab


def test_pages_fit_on_a_telephone_in_light_and_dark(telephone: Tab, scheme: str, pages: dict[str, Path]) -> None:
    for page in pages.values():
        show(telephone, page)
        assert telephone.evaluate("document.documentElement.scrollWidth") == 390
        red, green, blue = re.findall(r"\d+", telephone.evaluate(PAPER))
        is_light = int(red) + int(green) + int(blue) > 384
        assert is_light == (scheme == "light")


@pytest.fixture
def report(telephone: Tab, pages: dict[str, Path]) -> dict[str, Any]:
    """The data of a report, which the telephone shows."""
    return show(telephone, pages["report"])


def test_charts_of_a_report_are_in_their_groups(telephone: Tab, report: dict[str, Any]) -> None:
    titles = {group: telephone.locator(f"#charts-{group} h3").all_text_contents() for group in GROUPS}
    titles["main"] = telephone.locator("#main h3").all_text_contents()
    for chart in report["charts"]:
        place = "main" if chart["title"] == report["main"] else chart["group"]
        title = titles[place].pop(0)
        assert title.startswith(chart["title"])
    assert not any(titles.values())


def test_a_report_shows_the_numbers_of_its_data(telephone: Tab, report: dict[str, Any]) -> None:
    """The score in the main chart, the bars of attention, and the headline."""
    (score,) = [chart["score"] for chart in report["charts"] if chart["title"] == report["main"]]
    assert f"evaluation {score['value']:.3g}" in telephone.locator("#main svg").text_content()
    assert telephone.locator("#buckets rect").count() == len(report["buckets"]["bars"])
    assert telephone.locator("#bylayer rect").count() == 2
    numbers = set(telephone.locator(".numbers b").all_inner_texts())
    assert numbers == {number["value"] for number in report["headline"]["numbers"]}


@pytest.mark.usefixtures("report")
def test_a_chart_is_read_and_changed(telephone: Tab) -> None:
    """Its legend has the values where the pointer or the keys are; controls choose its axis and its smoothing."""
    chart = telephone.locator("#main svg")
    legend = telephone.locator("#main .legend")
    latest = legend.inner_text()
    chart.hover()
    assert "at " in legend.inner_text()
    assert legend.inner_text() != latest
    telephone.mouse.move(0, 0)
    chart.press("ArrowRight")
    assert "frames" in legend.inner_text()

    # Controls.
    telephone.select_option("#controls select", "time")
    assert "seconds" in chart.text_content()
    lines = telephone.locator("#main path").count()
    telephone.locator("#controls input").fill("0")
    assert telephone.locator("#main path").count() < lines, "one line a curve without smoothing"


def test_numbers_of_charts_have_the_digits_of_tables(tab: Tab, pages: dict[str, Path]) -> None:
    """Of numbers below 10 000 with an interval; charts have their own way with others."""
    show(tab, pages["comparison"])
    for (value, low, high), texts in DIGITS.items():
        if low < high < 1e4:
            assert tab.evaluate("(numbers) => withInterval(...numbers)", [value, low, high]) == texts


DRAW_NO_VALUES = """() => {
    const host = get("panels");
    host.replaceChildren();
    const line = { name: "a", color: "red", x: [1, 2], y: [null, null] };
    new LineChart(host, [line], { include: [0, 1] });
    return [...host.querySelectorAll("svg > *")].map((node) => node.textContent);
}"""
"""Draws a line without values; returns the texts of all that was drawn."""


def test_a_chart_without_values_has_no_axis(tab: Tab, pages: dict[str, Path]) -> None:
    show(tab, pages["comparison"])
    assert tab.evaluate(DRAW_NO_VALUES) == ["no values yet"]


ARE_OPEN = "[...document.querySelectorAll('details.group')].map((group) => group.open)"
"""Of each group of a report whether it is open."""
ARE_DRAWN = "[...document.querySelectorAll('details.group .charts svg')].map((svg) => svg.childElementCount > 0)"
"""Of each chart in a group whether it is drawn."""
WATCH_PRINTING = f"""addEventListener('beforeprint', () => {{
    window.printed = [...{ARE_OPEN}, ...{ARE_DRAWN}];
}})"""
SIZELESS = "details.group:not([open]) > div { display: none; }"
"""A style of browsers that give what is in a closed group no size: its charts are drawn when it opens."""


def test_groups_of_a_report_open_by_keys_and_in_print(
    tab: Tab, finished: tuple[Path, str], tmp_path: Path, cli: Commands
) -> None:
    report = tmp_path / "report.html"
    cli.run("report", finished[0], "--episodes", 0, "--output", report)
    report.write_text(report.read_text().replace("</style>", f"{SIZELESS}</style>"))
    show(tab, report)
    assert not any(tab.evaluate(ARE_OPEN))
    assert not any(tab.evaluate(ARE_DRAWN))

    tab.locator("#system > summary").press("Enter")
    tab.wait_for_function("get('charts-system').querySelector('svg').childElementCount > 0")
    assert tab.evaluate(ARE_OPEN).count(True) == 1

    tab.evaluate(WATCH_PRINTING)
    tab.pdf()
    printed = tab.evaluate("window.printed")
    assert len(printed) > 10
    assert all(printed)
    assert tab.evaluate(ARE_OPEN).count(True) == 1, "closed again after printing"


OPEN_GROUPS = "for (const group of document.querySelectorAll('details.group')) group.open = true"


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_accessible(tab: Tab, pages: dict[str, Path], kind: str) -> None:
    """With closed and with open groups."""
    show(tab, pages[kind])
    assert_accessible(tab)
    tab.evaluate(OPEN_GROUPS)
    assert_accessible(tab)


@pytest.mark.parametrize("kind", KINDS)
def test_printed_pages_are_light_and_without_controls(tab: Tab, pages: dict[str, Path], kind: str) -> None:
    show(tab, pages[kind])
    tab.evaluate(OPEN_GROUPS)
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(PAPER) == "rgb(251, 251, 250)"
    assert tab.locator("select:visible, input:visible, .controls :visible").count() == 0
    sheets = re.findall(rb"/Type */Page\b", tab.pdf())
    assert 1 <= len(sheets) <= 8


@pytest.fixture(scope="module")
def discounts(finished: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of runs with two discounts and two seeds."""
    folder = tmp_path_factory.mktemp("discounts")
    config = json.loads((finished[0] / "config.json").read_text())
    runs = []
    for discount, seed in itertools.product((0.9, 0.95), (0, 1)):
        run = shutil.copytree(finished[0], folder / f"{discount} {seed}")
        learner = config["learner"] | {"discount": discount}
        (run / "config.json").write_text(json.dumps(config | {"seed": seed, "learner": learner}))
        runs.append(str(run))
    main(["compare", "--folder", str(folder / "out"), "--from", *runs])
    return folder / "out" / "report.html"


def test_a_comparison_is_filtered(tab: Tab, discounts: Path) -> None:
    """In its table, its curves and its chart of scores."""
    show(tab, discounts)
    rows = tab.locator("tr[data-variant]:visible").count()
    lines = tab.locator("#panels path").count()
    names = tab.locator("#scores text").all_text_contents()
    assert {"random", "threshold"} <= set(names), "names of dotted lines"

    tab.select_option("#controls select", "0.95")
    assert tab.locator("tr[data-variant]:visible").count() == rows / 2
    assert tab.locator("#panels path").count() < lines
    assert "0.9)" not in tab.locator("#scores").text_content()


PRINT = """() => {
    const closed = () => document.querySelectorAll("details:not([open])").length;
    const before = closed();
    window.dispatchEvent(new Event("beforeprint"));
    const during = closed();
    window.dispatchEvent(new Event("afterprint"));
    return { before, during, after: closed() };
}"""
"""The number of closed groups before, during and after printing."""


def test_a_comparison_is_printed_with_open_groups(tab: Tab, discounts: Path) -> None:
    """What was chosen stays."""
    show(tab, discounts)
    tab.select_option("#controls select", "0.95")
    closed = tab.evaluate(PRINT)
    assert closed["before"] > 0
    assert closed["during"] == 0
    assert closed["after"] == closed["before"]
    assert tab.locator("#controls select").input_value() == "0.95"


def test_every_core_of_a_suite_has_a_color_of_its_own(tab: Tab, pages: dict[str, Path], scheme: Any) -> None:
    """All stand out from the page, by the contrast that WCAG 2.1 asks of graphics."""
    assert len(RunConfig.cores) <= COLORS
    show(tab, pages["comparison"])
    tab.emulate_media(color_scheme=scheme)
    read = """() => {
        const probe = document.body.appendChild(document.createElement("i"));
        const numbers = (color) => {
            probe.style.color = color;
            return getComputedStyle(probe).color.match(/[0-9.]+/g).map(Number);
        };
        const lines = Array.from({ length: COLORS }, (_, index) => numbers(colorOf(index)));
        return [numbers("var(--paper)"), ...lines, numbers(colorOf(COLORS))];
    }"""
    paper, *lines, again = tab.evaluate(read)
    assert len(lines) == COLORS
    assert len(set(map(tuple, lines))) == COLORS
    assert again == lines[0]

    def luminance(color: list[float]) -> float:
        parts = [value / 255 for value in color[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for line in lines:
        dark, light = sorted([luminance(line), luminance(paper)])
        assert (light + 0.05) / (dark + 0.05) >= 3
