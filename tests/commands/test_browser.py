"""The pages as a person uses them, in a headless Chromium where one is installed: slider, keys, layers and heads."""

import base64
import io
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from actors.recorder import record_episodes
from commands import main
from reports.episode import page_data
from reports.pages import write_page
from reports.report import GROUPS
from tests.actors.test_recording import compressive, make_actor
from tests.actors.test_recording_parts import TAG, TEXTS, Told, record_robot
from tests.commands.pages import embedded, shown_frames, unpacked
from tests.commands.test_statistics import DIGITS
from tests.commands.test_watch import serving

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which is in the extra dev")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium or Chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHOWN = """() => ({
  step: Number(document.body.dataset.step), slider: Number(get('slider').value), facts: get('facts').innerText,
  slots: [...document.querySelectorAll('.slot')].map((slot) => ({ ...slot.dataset })),
  frame: get('view').toDataURL(), map: get('map').toDataURL(), ribbon: get('ribbon').toDataURL(),
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=[r"(data|blob):|file:.*\.html$"])
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty tab, in which errors and requests beyond the page itself fail the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: None if re.match(request.param, sent.url) else problems.append(sent.url))
    yield page
    page.close()
    assert problems == []


def show(tab: Any, path: Path, place: str = "") -> dict[str, Any]:
    """Opens a page, of episodes at a place such as "#1.0"; returns its data."""
    tab.goto(path.as_uri() + place)
    tab.wait_for_selector("body[data-ready]", timeout=60_000)
    return embedded(path)


def expected_slots(episode: dict[str, Any], step: int, layers: list[int], heads: list[int]) -> dict[tuple, float]:
    """(first, last) of every slot at a step and its share, by the page's data."""
    shares, steps = [], None
    for layer in (episode["layers"][index] for index in layers):
        weights = unpacked(layer["weights"], "u1").reshape(-1, layer["heads"], layer["slots"])[step, heads]
        steps = unpacked(layer["steps"], "<i4").reshape(-1, layer["slots"], 2)[step]
        shares.append((weights / 255.0) ** 2)
    total = np.sum(shares, axis=(0, 1))
    assert steps is not None
    return {tuple(ends): share for ends, share in zip(steps.tolist(), total / total.sum()) if ends[0] >= 0}


def assert_strip(shown: dict[str, Any], expected: dict[tuple, float]) -> None:
    found = {(int(slot["first"]), int(slot["last"])): float(slot["size"]) for slot in shown["slots"]}
    assert len(found) == min(12, len(expected))
    for ends, weight in found.items():
        assert weight == pytest.approx(expected[ends], abs=1e-3)
    left_out = [weight for ends, weight in expected.items() if ends not in found]
    assert max(left_out, default=0.0) <= min(found.values()) + 1e-4, "the largest are shown"


def test_slider_keys_layers_heads_and_playing(tab: Any, finished: tuple[Path, str]) -> None:
    data = show(tab, finished[0] / "videos" / "final.html", "#1.0")
    (episode,) = data["episodes"]
    tab.select_option("#show", "attention")
    last, heads = len(episode["actions"]) - 1, list(range(episode["layers"][0]["heads"]))
    first = tab.evaluate(SHOWN)
    assert (first["step"], first["slider"]) == (0, 0)
    assert_strip(first, {(0, 0): 1.0})

    # Keys.
    rewarded = next((step for step, reward in enumerate(episode["rewards"]) if reward and step), 0)
    keys = [("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", last), ("Home", 0)]
    for key, step in keys + [("n", rewarded)] * bool(rewarded):
        tab.keyboard.press(key)
        shown = tab.evaluate(SHOWN)
        assert (shown["step"], shown["slider"]) == (step, step), key
        assert f"{step} of {last}" in shown["facts"]
        assert data["actions"][episode["actions"][step]] in shown["facts"]
        assert tab.locator("#policy .chosen").first.inner_text() == data["actions"][episode["actions"][step]]
        assert step != last or (shown["frame"] != first["frame"] and shown["map"] != first["map"])

    # The slider, one layer, and one head.
    views = []
    for choose, layers, chosen in (
        (lambda: tab.locator("#slider").fill("150"), [0, 1], heads),
        (lambda: tab.select_option("#layer", index=2), [1], heads),  # after the mean
        (lambda: tab.select_option("#head", index=3), [1], [2]),
    ):
        choose()
        views.append(tab.evaluate(SHOWN))
        assert_strip(views[-1], expected_slots(episode, 150, layers, chosen))
        assert {slot["kind"] for slot in views[-1]["slots"]} <= {"compressed", "memory", "segment"}
    assert len({json.dumps([view["slots"], view["ribbon"]]) for view in views}) == 3
    assert len({view["frame"] for view in views}) == 1

    # A link to the step.
    tab.goto(f"{(finished[0] / 'videos' / 'final.html').as_uri()}{tab.locator('#here').get_attribute('href')}")
    tab.wait_for_function("document.body.dataset.step === '150'")

    # The next wrong choice, or the first one.
    wrong = [step for step, choice in enumerate(episode["choices"]) if choice < 0]
    assert tab.locator("#mistake").is_visible() == any(episode["choices"])
    tab.keyboard.press("m")
    assert tab.evaluate(SHOWN)["step"] == next((step for step in wrong if step > 150), (wrong or [150])[0])

    # A slot leads to its first step.
    tab.evaluate("go(150)")
    slot = tab.locator(".slot").first
    target = int(slot.get_attribute("data-first"))
    slot.click()
    assert tab.evaluate(SHOWN)["step"] == target

    # Pictures, each pixel of which is drawn as 24 x 24. After a reload no menu has the focus.
    tab.reload()
    tab.wait_for_selector("body[data-ready]", timeout=60_000)
    frames = shown_frames(data, episode)
    for step in (99, 100, 179, 0):
        tab.evaluate(f"go({step})")
        encoded = tab.evaluate(SHOWN)["frame"].partition(",")[2]
        drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"))
        assert drawn.shape == (24 * 24, 32 * 24, 3)
        np.testing.assert_array_equal(drawn[12::24, 12::24], frames[step])

    # Playing.
    tab.keyboard.press(" ")
    tab.wait_for_function("Number(document.body.dataset.step) > 3")
    assert tab.locator("#play").inner_text() == "Pause"
    tab.keyboard.press(" ")
    assert tab.locator("#play").inner_text() == "Play"


def test_causes_come_first(tab: Any, finished: tuple[Path, str]) -> None:
    """Pictures of the slots without which the odds change most, and a sentence on the steps that decided."""
    (episode,) = show(tab, finished[0] / "videos" / "final.html", "#1.0")["episodes"]
    assert tab.locator("#said").inner_text() == "There is nothing to remember yet."
    layer, effects = episode["layers"][0], episode["effects"]
    falls = unpacked(effects["slots"], "<i2").reshape(180, -1) / 1000
    steps = unpacked(layer["steps"], "<i4").reshape(180, -1, 2)
    at = int(np.abs(falls).max(axis=1).argmax())
    tab.evaluate(f"go({at})")
    assert tab.locator("#layer").is_hidden()
    expected = {}
    for ends, fall in zip(steps[at].tolist(), falls[at]):
        is_earlier = ends[0] >= 0 and ends[1] < at
        if is_earlier and abs(fall) >= 0.05:
            expected[tuple(ends)] = fall
    best = sorted(expected, key=lambda ends: -abs(expected[ends]))[:12]
    found = tab.evaluate(SHOWN)["slots"]
    assert {(int(slot["first"]), int(slot["last"])) for slot in found} == set(best)
    assert all(
        float(slot["size"]) == pytest.approx(abs(expected[int(slot["first"]), int(slot["last"])]), abs=1e-3)
        for slot in found
    )

    # Laid over the episode: a stretch that decided, one step of it that did so alone, and a memory that did nothing.
    lay = """([fall, alone]) => {
        const { slots, steps } = episode.layers[0];
        const at = episode.values.length - 1, effects = episode.effects;
        effects.stretches[at] = [at - 3, at - 1];
        effects.of_stretches[at] = fall;
        for (let slot = 0; slot < slots; slot++) {
            effects.slots[at * slots + slot] = steps[2 * (at * slots + slot)] === at - 2 ? 1000 * alone : 0;
        }
        go(at);
        return get('said').textContent;
    }"""
    last = len(episode["values"]) - 1
    without = "in memory its odds would be 1/20 of what they are."
    several = f"Steps {last - 3} to {last - 1} decided this action: without them {without}"
    assert tab.evaluate(lay, [np.log(20), 0.0]) == several
    assert tab.evaluate(lay, [np.log(20), np.log(20)]) == f"Step {last - 2} decided this action: without it {without}"
    assert tab.locator(".slot").count() == 1
    assert tab.locator(".slot b").inner_text() == "÷ 20"
    kinds = "(falls) => { episode.effects.kinds[episode.values.length - 1] = falls; }"
    tab.evaluate(kinds, [np.log(2), 0.0, -np.log(3)])
    assert "spoke for this action" in tab.evaluate(lay, [np.log(5), 0.0])
    without = ["compressed memory ÷ 2", "memory same", "earlier steps of the segment × 3"]
    assert tab.locator("#shares span").all_inner_texts() == [f"odds without {what}" for what in without]
    assert tab.evaluate(lay, [0.01, 0.0]).startswith("Memory made no difference")
    assert "less than a millionth" in tab.evaluate(lay, [20.0, 0.0])


def test_a_page_opens_at_the_first_mistake(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    """Else at a choice, else in the middle. A link to a step is not overruled, and on a telephone the picture stays."""
    page = finished[0] / "videos" / "final.html"
    text = page.read_text()
    given = re.search(r'"choices":\[[^]]*\]', text)
    assert given is not None
    for choices, opened in (({60: 1, 90: -1, 120: -1}, 90), ({60: 1}, 60), ({}, 90)):
        laid = [choices.get(step, 0) for step in range(180)]
        other = tmp_path / "laid.html"
        other.write_text(text.replace(given.group(), f'"choices":{json.dumps(laid)}'))
        show(tab, other)
        assert tab.evaluate("step") == opened
    show(tab, other, "#1.7")
    assert tab.evaluate("step") == 7
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.mouse.wheel(0, 2000)
    tab.wait_for_function("window.scrollY > 300")
    view = tab.locator("#view").bounding_box()
    assert view["y"] >= 0
    assert view["height"] == pytest.approx(0.32 * 844, abs=1.5)
    assert tab.locator("#watch").bounding_box()["width"] == view["width"], "names are above what they name"
    assert tab.locator("#slider").bounding_box()["y"] < 844 / 2


def right_choices(episode: dict[str, Any]) -> np.ndarray:
    """Steps at which a choice is laid that is correct: all slots of memory are in use there."""
    layer = episode["layers"][0]
    steps = unpacked(layer["steps"], "<i4").reshape(180, -1, 2)[:, : sum(layer["sizes"][:2]), 0]
    return np.array([step for step in range(25, 180, 11) if (steps[step] >= 0).all()])


def said_of_choice(tab: Any, right: np.ndarray, wrong: int = 100) -> str:
    """Lays choices over the episode and returns what the page says of the one at step 100."""
    lay = "episode.choices = episode.values.map((_, at) => right.includes(at) - (at === wrong));"
    opened = "get('choice').open = true;"  # what is folded away has no text
    tab.evaluate(f"([right, wrong]) => {{ {lay} {opened} compared.clear(); go(100); }}", [right.tolist(), wrong])
    return tab.locator("#answer").inner_text().replace("−", "-")


def test_a_choice_is_beside_correct_ones(tab: Any, finished: tuple[Path, str]) -> None:
    """With choices laid over a real episode: values, and attention to the stay in the first room."""
    (episode,) = show(tab, finished[0] / "videos" / "final.html")["episodes"]
    room = np.array(episode["poses"])[:, 3]
    right = right_choices(episode)

    def attended(step: int) -> float:
        last = np.flatnonzero(room[: step + 1] == 0)[-1]
        first = max(np.flatnonzero(room[:last]), default=-1) + 1
        slots = expected_slots(episode, step, [0, 1], list(range(episode["layers"][0]["heads"])))
        return 100 * sum(w * max(0, min(b, last) - max(a, first) + 1) / (b - a + 1) for (a, b), w in slots.items())

    values, attention = np.array(episode["values"]), np.array([attended(step) for step in range(180)])
    stay = "attention at the choice to the latest stay in the room of the example"
    for name, found in (("value before the choice", values), (stay, attention)):
        row = said_of_choice(tab, right).partition(f"{name}\t")[2].partition("\n")[0]
        expected = [found[100], *np.quantile(found[right], [0.5, 0.25, 0.75])]
        numbers = re.findall(r"[+-]?\d[\d.]*", row)
        assert [float(number) for number in numbers] == pytest.approx(expected, rel=0.02, abs=0.1)
    low, high = (values[right] <= values[100]).sum(), (values[right] >= values[100]).sum()
    unusual = "Unusual: value before" in said_of_choice(tab, right)
    assert unusual == (2 * (min(low, high) + 1) / (len(right) + 1) <= 0.2)
    assert "There are only 3 correct choices: too few" in said_of_choice(tab, right[:3])
    assert "There are no correct choices" in said_of_choice(tab, right[:0])
    said_of_choice(tab, right, wrong=-1)
    tab.evaluate("choose(0, 100)")
    tab.wait_for_selector("#mistake:disabled:has-text('no mistake')")


ROOM = """(evidence) => { // the room begins at 80; it is between two things, nearer to the second
    const [take, leave] = [["red cone, left", 50, 9], ["red cube, right", -50, 9]];
    const inside = episode.values.map((_, at) => at >= 80 && at <= 100);
    episode.poses = inside.map((is, at) => [is ? -1 : 10, 0, at < 60 ? 0 : at < 80 ? 180 : 90, Number(is)]);
    episode.situations = inside.map((is) => (is ? { take, leave } : { example: take }));
    episode.evidence = inside.map((is, at) => (is ? (at === 86 ? evidence : 0) : null));
    episode.apart = episode.entered = null;
}"""


def test_a_wrong_choice_is_explained_by_memory(tab: Any, finished: tuple[Path, str]) -> None:
    """With choices and evidence laid over a real episode: memory misled it, spoke against it, or made no difference."""
    (episode,) = show(tab, finished[0] / "videos" / "final.html")["episodes"]
    right = right_choices(episode)
    times = np.log(200)
    tab.evaluate(ROOM, times)
    said = said_of_choice(tab, right)
    assert said.startswith("Wrong: memory misled it")
    less = "its actions in this room would have been 200 times less likely (100 or more means that memory decided)"
    assert less in said
    assert "it seems to have mistaken the example for the other object" in said
    assert "It took the red cube (leave), not the red cone (take)." in said
    assert "It took the red cube, right (leave), not the red cone, left (take)" in said
    seen_best = [["the example", "red cone", "seen at step 0"], ["✗ it took", "red cube", "seen at step 90"]]
    tab.evaluate("episode.poses[90][2] = 170; go(100)")  # it turns to one of the two
    assert [text.split("\n") for text in tab.locator(".object").all_inner_texts()] == seen_best
    assert "changed the verdict most is 86, 6 after entering" in said
    assert "60 of the 80 steps of the latest stay (0–79) had the example in view" in said
    pairs = 1 + np.isin(right, range(80, 101)).sum()
    rates = f"of choices between such things, 1 of {pairs} on this page were wrong, of the others 0 of"
    assert f'alike ("red"): {rates}' in said
    counts = "of 1 wrong one it misled {}, made little difference in {} and spoke against {}"
    assert counts.format(1, 0, 0) in said
    tab.evaluate(ROOM, -times)
    said = said_of_choice(tab, right)
    assert said.startswith("Wrong, against its memory")
    assert "its actions in this room would have been 200 times more likely" in said
    assert counts.format(0, 0, 1) in said
    tab.evaluate(ROOM, np.log(2.5))
    said = said_of_choice(tab, right)
    assert said.startswith("Wrong: a guess")
    assert "it would have done much the same (likelihood ratio 2.5; 100 or more would mean that memory decided)" in said
    assert "the page cannot say which" in said
    assert counts.format(0, 1, 0) in said


def test_a_guess_says_whether_the_agent_told_the_objects_apart(tab: Any, finished: tuple[Path, str]) -> None:
    show(tab, finished[0] / "videos" / "final.html")
    tab.evaluate(ROOM, np.log(2.5))
    far = "with the other object as the example, what entered its memory would have been"
    alone = np.arange(102, 180, 5)
    others = """(here) => {
        episode.evidence = episode.evidence.map((one) => one ?? 9);
        episode.apart = episode.evidence.map((one) => (one === 9 ? 1 : here));
    }"""
    tab.evaluate(others, 1)
    assert "It told the two apart when it saw the example" in said_of_choice(tab, alone)
    tab.evaluate(others, 0.1)
    said = said_of_choice(tab, alone)
    never = "Probably it never told the two apart"
    assert f"{never}: {far} 0.1 away from what it was, at correct choices typically 1" in said
    assert f"it was more at {len(alone)} of {len(alone)} correct choices" in said
    assert f"In 1 of 1 guesses, and in 0 of {len(alone)} choices that memory decided" in said
    tab.locator("#decisive").click()
    assert tab.evaluate(SHOWN)["step"] == 86
    assert tab.locator("#verdict").inner_text() == "Wrong: a guess (the choice at step 100)"
    tab.get_by_role("button", name="back to the choice, step 100").click()
    assert tab.evaluate(SHOWN)["step"] == 100
    tab.evaluate("go(10)")
    assert tab.locator("#named").inner_text() == "example ▾"
    assert tab.locator("#answer").is_hidden(), "it belongs to no choice"


def test_routed_slots_name_their_cluster_and_its_steps(tab: Any, routed: tuple[Path, Any]) -> None:
    (episode,) = show(tab, routed[0])["episodes"]
    assert "mean of all" not in tab.locator("#layer").inner_text(), "clusters of layers are not the same"
    step, layer = len(episode["actions"]) - 1, episode["layers"][0]
    tab.keyboard.press("End")
    assert tab.locator("#show").is_hidden(), "what memory caused was not recorded"
    steps = unpacked(layer["steps"], "<i4").reshape(step + 1, -1, 2)[step, :, 0]
    read = unpacked(layer["weights"], "u1").reshape(step + 1, 2, -1)[step] > 0
    for head in (0, 1):
        tab.select_option("#head", index=1 + head)
        slots = [slot for slot in range(24) if read[head, slot]]
        (ring,) = {slot // 4 for slot in slots}
        cluster = f"cluster {ring % 3 + 1} of group {ring // 3 + 1}"
        shown = tab.evaluate(SHOWN)["slots"]
        found = {int(slot["first"]): slot["cluster"] for slot in shown if slot["kind"] == "routed"}
        assert found == dict.fromkeys(steps[slots].tolist(), cluster)
        assert {slot["cluster"] for slot in shown if slot["kind"] != "routed"} == {""}
        line = tab.locator("#rings").inner_text()
        assert f"goes to {cluster}, which holds step" in line
        named = re.findall(r"(\d+)(?:–(\d+))?", line.partition("holds")[2])
        assert {at for a, b in named for at in range(int(a), int(b or a) + 1)} == found.keys()
    tab.select_option("#layer", index=1)
    assert tab.locator("#rings").inner_text() == ""


def test_numbers_of_charts_have_the_digits_of_tables(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    """A chart without values has no axis."""
    main(["compare", "--from", str(finished[0]), "--folder", str(tmp_path)])
    show(tab, tmp_path / "report.html")
    for numbers, texts in DIGITS.items():
        value, low, high = numbers
        if low < high < 1e4:
            assert tab.evaluate("(numbers) => withInterval(...numbers)", [value, low, high]) == texts
    drawn = tab.evaluate("""() => {
        const host = get("panels");
        host.replaceChildren();
        new LineChart(host, [{ name: "a", colour: "red", x: [1, 2], y: [null, null] }], { include: [0, 1] });
        return [...host.querySelectorAll("svg > *")].map((node) => node.textContent);
    }""")
    assert drawn == ["no values yet"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_on_a_telephone_and_charts(tab: Any, finished: tuple[Path, str], tmp_path: Path, scheme: str) -> None:
    run, report = finished[0], tmp_path / "report.html"
    main(["report", str(run), "--episodes", "1", "--output", str(report)])
    main(["compare", "--from", str(run), "--folder", str(tmp_path / "compared")])
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": 390, "height": 844})
    for path in (run / "videos" / "final.html", tmp_path / "compared" / "report.html", report):
        data = show(tab, path)
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, paper[4:-1].split(","))) > 384) == (scheme == "light")
    drawn = {group: tab.locator(f"#charts-{group} h3").all_text_contents() for group in GROUPS}
    drawn["main"] = tab.locator("#main h3").all_text_contents()
    for chart in data["charts"]:
        title = drawn["main" if chart["title"] == data["main"] else chart["group"]].pop(0)
        assert title.startswith(chart["title"])
    assert not any(drawn.values())
    score = next(chart["score"] for chart in data["charts"] if chart["title"] == data["main"])
    assert f"evaluation {score['value']:.3g}" in tab.locator("#main svg").text_content()
    assert tab.locator("#buckets rect").count() == len(data["buckets"]["bars"])
    assert tab.locator("#bylayer rect").count() == 2
    legend = tab.locator("#main .legend")
    before = legend.inner_text()
    tab.locator("#main svg").hover()
    assert "at " in legend.inner_text() != before
    tab.mouse.move(0, 0)
    tab.locator("#main svg").press("ArrowRight")
    assert "frames" in legend.inner_text()
    tab.select_option("#controls select", "time")
    assert "seconds" in tab.locator("#main svg").text_content()
    lines = tab.locator("#main path").count()
    tab.locator("#controls input").fill("0")
    assert tab.locator("#main path").count() < lines, "one line a curve without smoothing"
    shown = set(tab.locator(".numbers b").all_inner_texts())
    assert shown == {number["value"] for number in data["headline"]["numbers"]}


def test_groups_of_a_report_open_by_keys_and_in_print(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    """Also in a browser that gives what is in a closed group no size: its charts are drawn when it opens."""
    report = tmp_path / "report.html"
    main(["report", str(finished[0]), "--episodes", "0", "--output", str(report)])
    sizeless = "details.group:not([open]) > div { display: none; }</style>"
    report.write_text(report.read_text().replace("</style>", sizeless))
    show(tab, report)
    is_open = "[...document.querySelectorAll('details.group')].map((group) => group.open)"
    drawn = "[...document.querySelectorAll('details.group .charts svg')].map((svg) => svg.childElementCount > 0)"
    assert not any(tab.evaluate(is_open))
    assert not any(tab.evaluate(drawn))

    tab.locator("#system > summary").press("Enter")
    tab.wait_for_function("get('charts-system').querySelector('svg').childElementCount > 0")
    assert tab.evaluate(is_open).count(True) == 1

    tab.evaluate(f"addEventListener('beforeprint', () => (window.printed = [...{is_open}, ...{drawn}]))")
    tab.pdf()
    assert len(tab.evaluate("window.printed")) > 10
    assert all(tab.evaluate("window.printed"))
    assert tab.evaluate(is_open).count(True) == 1, "closed again after printing"


def test_pages_side_by_side_go_together(tab: Any, copied: Callable[..., Path], tmp_path: Path) -> None:
    run, output = str(copied(env="rooms:small,episode_frames=100")), tmp_path / "both"
    main(["visualize", run, run, "--output", str(output)])
    tab.goto((output / "episodes.html").as_uri())
    _, one, two = tab.frames
    for frame in (one, two):
        frame.wait_for_selector("body[data-ready]", timeout=60_000)
    place = "document.body.dataset.step + ' ' + get('episode').value"
    for act, expected in (
        (lambda: one.locator("#slider").fill("12"), "12 0"),
        (lambda: two.select_option("#episode", "1"), "0 1"),
        (lambda: two.locator("#slider").fill("7"), "7 1"),
    ):
        act()
        for frame in (one, two):
            frame.wait_for_function(f"{place} === '{expected}'")


def assert_accessible(tab: Any) -> None:
    """axe-core finds no fault, in light and dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        found = axe.run(tab).response["violations"]
        assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []


def test_accessible_and_printed(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    """Printed, pages are light and without controls."""
    run, report = finished[0], tmp_path / "report.html"
    main(["report", str(run), "--episodes", "1", "--output", str(report)])
    main(["compare", "--from", str(run), "--folder", str(tmp_path / "compared")])
    for path in (run / "videos" / "final.html", report, tmp_path / "compared" / "report.html"):
        show(tab, path)
        assert_accessible(tab)
        tab.evaluate("for (const group of document.querySelectorAll('details.group')) group.open = true")
        assert_accessible(tab)
        tab.emulate_media(media="print", color_scheme="dark")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
        assert tab.locator("select:visible, input:visible, .controls :visible").count() == 0
        assert 1 <= len(re.findall(rb"/Type */Page\b", tab.pdf())) <= 8
        tab.emulate_media(media="screen")


def test_a_comparison_is_filtered(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    config, runs = json.loads((finished[0] / "config.json").read_text()), []
    for discount, seed in itertools.product((0.9, 0.95), (0, 1)):
        runs.append(shutil.copytree(finished[0], tmp_path / f"{discount} {seed}"))
        changed = config | {"seed": seed, "learner": config["learner"] | {"discount": discount}}
        (runs[-1] / "config.json").write_text(json.dumps(changed))
    main(["compare", "--folder", str(tmp_path / "out"), "--from", *map(str, runs)])
    show(tab, tmp_path / "out" / "report.html")
    rows = tab.locator("tr[data-variant]:visible").count()
    assert {"random", "threshold"} <= {*tab.locator("#scores text").all_text_contents()}, "names of dotted lines"
    lines = tab.locator("#panels path").count()
    tab.select_option("#controls select", "0.95")
    assert tab.locator("tr[data-variant]:visible").count() == rows / 2
    assert tab.locator("#panels path").count() < lines
    assert "0.9)" not in tab.locator("#scores").text_content()
    printed = """() => {
        const shown = () => document.querySelectorAll("details:not([open])").length;
        const before = shown();
        window.dispatchEvent(new Event("beforeprint"));
        const during = shown();
        window.dispatchEvent(new Event("afterprint"));
        return [before > 0, during, shown() === before];
    }"""
    assert tab.evaluate(printed) == [True, 0, True]
    assert tab.locator("#controls select").input_value() == "0.95"


@pytest.mark.parametrize("tab", [r"(data|blob):|http://127\.0\.0\.1:"], indirect=True)
def test_a_watched_run_is_updated(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> None:
    run = shutil.copytree(finished[0], tmp_path / "runs" / "run")
    with serving(tmp_path / "runs") as server:
        tab.goto(server.url)
        tab.wait_for_selector("body[data-ready]")
        assert_accessible(tab)
        tab.click("td a, th a")
        tab.wait_for_selector("body[data-ready] #main svg")
        tab.click("#system > summary")
        tab.select_option("#controls select", "steps")
        tab.locator("#controls input").fill("0")
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 1000000, "time": 2e9, "learner/frames": 4000000.0, "episode/return": 77.0}\n')
        tab.wait_for_selector("#main .legend:has-text('77')", timeout=20_000)
        assert tab.locator("details.group[open]").get_attribute("id") == "system", "what was opened stays open"
        assert tab.locator("#controls select").input_value() == "steps", "what was chosen stays"
        assert tab.locator("video").get_attribute("src") == "videos/final.mp4"
        tab.click("text=final.html")
        tab.wait_for_selector("body[data-ready]", timeout=60_000)


@pytest.fixture
def watched(tab: Any, finished: tuple[Path, str], tmp_path: Path) -> Iterator[Path]:
    """The overview of two runs that can be compared, `a` with a score of 10 and `b` of 90, and of another."""
    for name, score in (("a", 10.0), ("b", 90.0), ("other", 50.0)):
        run = shutil.copytree(finished[0], tmp_path / "runs" / name)
        summary = json.loads((run / "evaluation.json").read_text())
        (run / "evaluation.json").write_text(json.dumps(summary | {"oracle_normalised": score}))
        if name == "other":
            config = json.loads((run / "config.json").read_text())
            (run / "config.json").write_text(json.dumps(config | {"env": "rooms:small,episode_frames=100"}))
    with serving(tmp_path / "runs") as server:
        tab.goto(server.url)
        tab.wait_for_selector("body[data-ready]")
        yield tmp_path / "runs"


LIVE = pytest.mark.parametrize("tab", [r"(data|blob):|http://127\.0\.0\.1:"], indirect=True)


def names_of(tab: Any) -> list[str]:
    """The runs of the first group that has two, in the order in which they are shown."""
    return tab.locator(".data:has(tbody tr + tr) tbody a").all_inner_texts()


@LIVE
def test_runs_are_sorted_and_an_update_keeps_what_was_chosen(tab: Any, watched: Path) -> None:
    """By click, by keyboard and by the menu of narrow screens; order, closed groups and focus stay."""
    score = tab.locator(".data:has(tbody tr + tr) th[data-key=score]")
    assert score.get_attribute("aria-sort") == "none"
    score.locator("button").click()
    assert (names_of(tab), score.get_attribute("aria-sort")) == (["b", "a"], "descending")
    tab.keyboard.press("Enter")
    assert (names_of(tab), score.get_attribute("aria-sort")) == (["a", "b"], "ascending")
    other = tab.locator("details:has-text('Other runs')")
    other.locator("summary").click()
    score.locator("button").focus()
    with (watched / "a" / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 1000000, "time": 1e9, "learner/frames": 4000000.0, "episode/return": 77.0}\n')
    tab.wait_for_selector("tr:has-text('d ago')", timeout=20_000)
    assert (names_of(tab), score.get_attribute("aria-sort")) == (["a", "b"], "ascending")
    assert tab.evaluate("document.activeElement.textContent") == "score"
    assert other.evaluate("(details) => details.open") is False

    tab.set_viewport_size({"width": 390, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.select_option("#order", label="score, descending")
    assert names_of(tab) == ["b", "a"]


@LIVE
def test_a_command_is_copied_or_selected(tab: Any, watched: Path) -> None:
    command = f"compressive report {watched / 'a'}"
    button = tab.locator("tr:has(a:text-is('a')) .copy")
    allowed = "Object.defineProperty(navigator, 'clipboard', { configurable: true, value: %s })"
    tab.evaluate(allowed % "{ writeText: async (text) => { window.copied = text; } }")
    button.click()
    tab.wait_for_selector(".copy:text-is('Copied')")
    assert tab.evaluate("window.copied") == command
    tab.evaluate(allowed % "undefined")
    button.click()
    tab.wait_for_selector(".copy:text-is('Selected')")
    assert tab.evaluate("getSelection().toString()") == command


@LIVE
def test_curves_and_scores_of_the_overview(tab: Any, watched: Path) -> None:
    assert tab.locator(".spark").count() == 3
    assert tab.locator(".tag").count() == 0
    (watched / "b" / "evaluation.json").unlink()
    (watched / "a" / "metrics.jsonl").unlink()
    tab.reload()
    tab.wait_for_selector("body[data-ready]")
    assert tab.locator(".spark").count() == 2
    assert tab.locator("tr:has(a:text-is('a')) td:has-text('no values yet')").count() == 1
    assert "training" in tab.locator("tr:has(a:text-is('b'))").inner_text()
    assert_accessible(tab)


def test_an_instruction_is_text_whatever_it_says(tab: Any, tmp_path: Path) -> None:
    page = write_page(tmp_path / "told.html", "episode", page_data([record_robot(Told)], "Told", "lstm"))
    show(tab, page, "#1.0")
    said = []
    for _ in TEXTS:
        (value,) = tab.evaluate(
            "[...document.querySelectorAll('#facts dt')].filter((name) => name.textContent === 'instruction')"
            ".map((name) => name.nextElementSibling.textContent)"
        )
        said.append(value)
        tab.keyboard.press("ArrowRight")
    assert said[0] == said[1] == TEXTS[0]
    assert said[2].startswith(TAG)
    assert said[3] == ""
    assert tab.locator("img").count() == 0


def test_wide_pictures_of_steps_are_beside_each_other(tab: Any, tmp_path: Path) -> None:
    (recording,) = record_episodes(make_actor(compressive(), "diagnostic:tmaze,length=9"), 1)
    page = write_page(tmp_path / "wide.html", "episode", page_data([recording], "Wide", "compressive"))
    show(tab, page)
    tab.keyboard.press("End")
    assert tab.evaluate("DATA.sheet.width / DATA.sheet.height") > 4
    # Pictures get their size when they are drawn, soon after the key.
    tab.wait_for_function("[...document.querySelectorAll('.slot canvas')].some((canvas) => canvas.clientWidth > 200)")
    found = tab.locator(".slot canvas").evaluate_all(
        "(all) => all.map((canvas) => [canvas.clientWidth, Number(canvas.parentElement.dataset.size)])"
    )
    widths, weights = np.array(found).T
    assert widths.max() == pytest.approx(208, abs=2)
    np.testing.assert_allclose(widths, 208 * np.sqrt(weights / weights.max()), atol=3)


def test_vectors_of_actions_fit_on_a_narrow_screen(tab: Any, tmp_path: Path) -> None:
    """The keys of a choice fold it, and do not play the episode."""
    page = write_page(tmp_path / "robot.html", "episode", page_data([record_robot()], "Robot", "lstm"))
    tab.set_viewport_size({"width": 390, "height": 860})
    show(tab, page, "#1.0")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("get('columns').scrollWidth - get('columns').clientWidth") == 0
    texts = tab.locator("#columns > *").evaluate_all("(nodes) => nodes.map((node) => node.lastChild.textContent)")
    assert texts[1:3] == ["5.85", "−3"]
    dot = tab.locator(".track em").bounding_box()
    track = tab.locator(".track").bounding_box()
    middle = dot["x"] + dot["width"] / 2 - track["x"]
    assert middle / track["width"] == pytest.approx((4 + 4 * np.tanh(0.5)) / 8, abs=0.01)

    tab.locator("#columns summary").first.focus()
    tab.keyboard.press(" ")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("[document.querySelector('#columns details').open, timer, step]") == [False, None, 1]
