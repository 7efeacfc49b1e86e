"""The pages of `visualize`, `report` and `launch` hold what was played and measured, in any condition of a run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from actors.recording import Recording
from reports.comparison import KIND
from reports.episode import page_data
from reports.headline import headline
from reports.pages import packed, write_page
from reports.report import CHARTS, _bucket_sums, attention_by_bucket, changed_settings, pages_about, references
from reports.tables import with_interval
from reports.views import BARS
from sequences.kinds import PRESETS
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import SMALL, TINY, Commands, frames, saved_steps
from tests.commands.pages import embedded, shown_frames, unpacked
from training.evaluation import load_trained_agent, record
from training.plain import read_config

Copied = Callable[..., Path]


@pytest.fixture(scope="session")
def recording(finished: tuple[Path, str]) -> Recording:
    """The episode that the finished run filmed, played once more."""
    player = load_trained_agent(Run(finished[0]))
    return record(player.config, player.agent, 1)[0]


@pytest.fixture
def page(finished: tuple[Path, str]) -> Path:
    return finished[0] / "videos" / "final.html"


def test_the_page_of_a_run_holds_the_episode_as_it_was_played(page: Path, recording: Recording) -> None:
    data = embedded(page)
    assert page.stat().st_size < 2_000_000

    # The level: its actions, rooms and rule.
    assert data["actions"][0] == "forward"
    assert data["plan"]["rooms"][0] == "room of the example"
    assert "The object that differs from the example gives +10" in data["rule"]

    # Pictures: frames, and what the agent drew of them.
    (episode,) = data["episodes"]
    np.testing.assert_array_equal(shown_frames(data, episode), recording.observations)
    drawn = unpacked(episode["drawn"], "u1").reshape(len(recording.actions), *data["drawn"], 3)
    np.testing.assert_array_equal(drawn, recording.reconstructions)

    # Numbers of each step.
    assert episode["actions"] == recording.actions.tolist()
    roots = unpacked(episode["probabilities"], "<u2").reshape(-1, len(data["actions"])) / 65_535
    np.testing.assert_allclose(roots**2, recording.probabilities, atol=2e-5)
    np.testing.assert_allclose(episode["values"], recording.values, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(episode["rewards"], recording.rewards, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(episode["scores"], recording.returns, atol=1e-3)
    np.testing.assert_allclose(episode["poses"], recording.poses, rtol=1e-3, atol=1e-6)
    assert episode["score"] == recording.episode.score
    choices = recording.choices.tolist()
    assert choices.count(1) == recording.episode.metrics["correct_choices"]
    assert choices.count(-1) == recording.episode.metrics["wrong_choices"]

    # What is near the player at each step: words and a place.
    for shown, known in zip(episode["situations"], recording.situations, strict=True):
        assert shown == {name: [words, *map(pytest.approx, place)] for name, (words, *place) in known.items()}

    # Attention: the square root of each weight is a byte.
    assert len(episode["layers"]) == len(recording.attention) == 2
    for layer, played in zip(episode["layers"], recording.attention):
        assert tuple(layer["sizes"]) == played.sizes
        weights = (unpacked(layer["weights"], "u1").reshape(played.weights.shape) / 255) ** 2
        np.testing.assert_allclose(weights, played.weights, atol=0.005)
        np.testing.assert_allclose(weights.sum(axis=2), 1, atol=0.03)
        np.testing.assert_array_equal(unpacked(layer["steps"], "<i4").reshape(played.steps.shape), played.steps)


def test_routed_slots_have_a_cluster(routed: tuple[Path, Recording]) -> None:
    """Rings come group by group and cluster by cluster; a head reads one ring of its group, oldest step first."""
    groups, clusters, window = 2, 3, 4
    rings = groups * clusters
    slots = rings * window

    page, played = routed
    routed_layer, plain_layer = embedded(page)["episodes"][0]["layers"]
    assert routed_layer["rings"] == {"groups": groups, "clusters": clusters, "window": window}
    assert plain_layer["rings"] is None

    # The routed slots come first. Each of two heads has a group of its own; a slot has a first and a last step.
    heads = groups
    length = len(played.actions)
    weights = unpacked(routed_layer["weights"], "u1").reshape(length, heads, -1)
    weights = weights[:, :, :slots].reshape(length, heads, groups, clusters, window)
    steps = unpacked(routed_layer["steps"], "<i4").reshape(length, -1, 2)
    first_steps = steps[:, :slots, 0].reshape(length, rings, window)
    filled_at_the_end = (first_steps[-1] >= 0).any(axis=1)
    assert filled_at_the_end.sum() > 2

    is_read = (weights > 0).any(axis=-1)
    for head in range(heads):
        other = 1 - head
        assert is_read[:, head].any()
        assert (is_read[:, head].sum(axis=(1, 2)) <= 1).all()
        assert not is_read[:, head, other].any()
    for ring in first_steps.reshape(-1, window):
        held = ring[ring >= 0]
        assert (np.diff(held) > 0).all()


def test_what_does_not_fit_is_left_out_and_said(recording: Recording) -> None:
    rest = 100_000  # characters of a page beside its episodes
    whole = page_data([recording], "a", "compressive")
    assert whole["note"] == ""
    size = len(json.dumps(whole["episodes"]))

    # Room for one and a half episodes.
    two = page_data([recording, recording], "a", "compressive", limit=int(1.5 * size) + rest)
    assert len(two["episodes"]) == 1
    assert "the first 1 of 2 episodes" in two["note"]

    # Room for 70 % of one.
    part = page_data([recording], "a", "compressive", limit=int(0.7 * size) + rest)
    assert len(part["episodes"][0]["actions"]) == 90
    assert "the first 90 of 180 steps" in part["note"]
    assert len(json.dumps(part["episodes"])) <= 0.7 * size


def test_visualize_writes_a_video_and_a_page(copied: Copied, tmp_path: Path, cli: Commands) -> None:
    run = copied(env="rooms:small,episode_frames=100")
    played = []
    for number, options in enumerate((["--seed=4"], ["--seed=5"], ["--seed=5", "--greedy"])):
        shown = tmp_path / f"shown {number}"
        printed = cli.run("visualize", run, "--episodes=1", *options, "--output", shown)
        assert sorted(path.name for path in shown.iterdir()) == ["episodes.html", "episodes.mp4"]
        assert all(str(path) in printed for path in shown.iterdir())
        (episode,) = embedded(shown / "episodes.html")["episodes"]
        played.append(episode)

    four, five, greedy = played
    assert four["actions"] != five["actions"]
    probabilities = unpacked(greedy["probabilities"], "<u2").reshape(len(greedy["actions"]), -1)
    chosen = np.take_along_axis(probabilities, np.array(greedy["actions"])[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(chosen, probabilities.max(axis=1))
    assert greedy["actions"] != five["actions"]


@pytest.mark.slow
def test_an_earlier_agent_does_not_replace_the_film_of_the_last_one(copied: Copied, cli: Commands) -> None:
    run = copied(env="rooms:small,episode_frames=100")
    for old in (run / "videos").iterdir():
        old.unlink()
    name = f"{saved_steps(run)[-1]:012d}"
    checkpoint = run / "checkpoints" / name

    def shown() -> str:
        page = cli.run("report", run, "--episodes=0") and (run / "report.html").read_text()
        (video,) = set(re.findall(r'"name":"([^"]+\.mp4)"', page))
        return video

    cli.run("visualize", checkpoint, "--episodes=1")
    assert shown() == f"episodes-at-{name}.mp4", "there is no other"
    cli.run("visualize", run, "--episodes=1")
    assert shown() == "episodes.mp4"
    cli.run("visualize", checkpoint, "--episodes=1")
    assert shown() == "episodes.mp4"
    files = [f"episodes{of}.{ending}" for of in (f"-at-{name}", "") for ending in ("html", "mp4")]
    assert sorted(path.name for path in (run / "videos").iterdir()) == files


@pytest.mark.slow
def test_agents_side_by_side(copied: Copied, tmp_path: Path, cli: Commands) -> None:
    """Episodes begin alike, whatever the seeds of the runs; with the same weights all of their steps are alike."""
    short = "rooms:small,episode_frames=100"
    runs = [copied("a b", env=short), copied("a?b", env=short, seed=77)]
    cli.run("visualize", *runs, "--output", tmp_path / "both", "--seed=3")
    pages = ["1-a_b.html", "2-a_b.html"]
    assert re.findall(r'<iframe src="(.*?)"', (tmp_path / "both" / "episodes.html").read_text()) == pages
    one, two = (embedded(tmp_path / "both" / page)["episodes"] for page in pages)
    assert len(one) == 2
    assert [each["actions"] for each in one] == [each["actions"] for each in two]
    assert one[0]["actions"] != one[1]["actions"]

    # Runs that cannot be side by side.
    cli.refuse("visualize", *runs, words="output: expected a folder")
    other = copied("c", env="rooms:small")
    words = f"expected runs in one environment, got rooms:small and {short}"
    cli.refuse("visualize", runs[0], other, "--output", tmp_path / "other", words=words)


def test_text_cannot_end_the_script_or_be_a_template(tmp_path: Path) -> None:
    data = {"title": "</script><script>alert(1)</script><!--<script>{{style}}", "note": "<b>{{ json }}", "episodes": []}
    page = write_page(tmp_path / "a.html", "episode", data)
    text = page.read_text()
    for words in ("<title>&lt;/script&gt;", "{{style}}</title>", "&lt;b&gt;{{ json }}"):
        assert words in text
    assert "alert(1)</script>" not in text
    assert embedded(page) == data
    np.testing.assert_array_equal(unpacked(packed(np.arange(5, dtype=np.int32)), "<i4"), np.arange(5))


def test_the_report_of_the_run_in_the_current_folder(
    copied: Copied, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped run without checkpoints, evaluation and films; then without metrics."""
    # Damages the run.
    run = copied("my [red] run")
    for path in [run / "evaluation.json", *run.glob("videos/*")]:
        path.unlink()
    for path in run.glob("checkpoints/*/weights.safetensors"):
        path.write_bytes(b"torn")
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 1')
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"frames": config["frames"] * 4}))

    monkeypatch.chdir(run)
    assert cli.run("report", ".").endswith("resume with: compressive launch --resume . --local\n")

    # The page says what is missing and why.
    data = embedded(run / "report.html")
    assert data["facts"]["state"] == "stopped"
    assert "Nothing could be played: my [red] run has no checkpoint" in data["buckets"]["why"]
    assert "weights.safetensors has 4 bytes" in data["buckets"]["why"]
    assert str(run.parent) not in (run / "report.html").read_text()
    assert (data["evaluation"], data["media"]) == ({}, {"pages": []})

    # Its main number is one of training.
    number, *_ = data["headline"]["numbers"]
    assert (data["headline"]["source"], number["name"]) == ("training", "training return")
    assert number["note"] == "mean over the latest training episodes, at most 200"
    assert data["headline"]["command"] == "compressive evaluate ."
    charts = {chart["title"]: chart for chart in data["charts"]}
    assert charts["return"]["score"] is None
    assert len(charts) > 5
    cli.refuse("visualize", run, words="no checkpoint that can be read")

    # Without metrics.
    (run / "metrics.jsonl").unlink()
    cli.run("report", run, "--episodes=0")
    data = embedded(run / "report.html")
    assert data["charts"] == data["compression"] == data["headline"]["numbers"] == []
    assert "Nothing has been measured yet." in (run / "report.html").read_text()


def test_the_report_of_a_finished_run(copied: Copied, tmp_path: Path, cli: Commands) -> None:
    run = copied("run #1 100%")
    assert str(run / "report.html") in cli.run("report", run, "--episodes", "1")
    data = embedded(run / "report.html")
    assert data["facts"]["state"] == "finished"
    assert data["changed"]["agent.torso_size"] == ["256", "16"]

    # The headline has the numbers of the evaluation, the facts that of training.
    rows = read_metrics(run)
    last = rows[-1]
    summary = json.loads((run / "evaluation.json").read_text())
    score, choices, relative = data["headline"]["numbers"]
    assert float(score["value"]) == pytest.approx(summary["return"]["mean"], rel=1e-3)
    share = [100 * summary["correct_choices"][end] for end in ("mean", "low", "high")]
    assert choices["value"] == f"{with_interval(*share)[0]} %", "with the digits that its interval allows"
    assert relative["name"] == "oracle-normalized score"
    assert (data["headline"]["source"], data["headline"]["command"]) == ("evaluation", "")
    assert float(data["facts"]["return in training"]) == pytest.approx(last["episode/return"], abs=0.06)
    assert "return" not in data["facts"], "it would be unclear of what"
    assert "return" in data["evaluation"]

    # Charts.
    charts = {chart["title"]: chart["series"] for chart in data["charts"]}
    assert {"return", "correct choices", "losses", "attention", "throughput", "policy lag"} <= charts.keys()
    (returns,) = charts["return"]
    assert returns["name"] == "training: return"
    main = next(chart for chart in data["charts"] if chart["title"] == data["main"])
    assert main["score"] == {"name": "evaluation", "value": summary["return"]["mean"]}
    assert returns["x"][-1] == last["learner/frames"]
    assert returns["y"][-1] == pytest.approx(last["episode/return"], rel=1e-3)

    # Memory: losses of compression, and the attention to each kind of slots.
    latest = rows[-3:]
    names = ["loss/compression/layer_0", "loss/compression/layer_1"]
    expected = [np.mean([row[name] for row in latest]) for name in names]
    assert data["compressibility"] == pytest.approx(expected, rel=0.2)
    assert sum(bar["mean"] for bar in data["buckets"]["bars"]) == pytest.approx(1, abs=0.01)
    assert [bar["kind"] for bar in data["buckets"]["bars"]] == ["compressed"] * 6 + ["memory"] * 6 + ["segment"] * 6

    # The film and its page.
    assert data["media"]["video"]["source"].startswith("data:video/mp4;base64,")
    assert data["media"]["pages"] == [{"name": "final.html", "link": "videos/final.html"}]


def test_links_between_pages_are_relative(copied: Copied, tmp_path: Path, cli: Commands) -> None:
    run = copied("run #1 100%")
    cli.run("report", run, "--episodes=0")
    cli.run("report", run, "--episodes=0", "--output", tmp_path / "page.html")
    (link,) = embedded(tmp_path / "page.html")["media"]["pages"]
    assert link["link"] == "run%20%231%20100%25/videos/final.html"
    assert [each["link"] for each in pages_about(run, run / "videos" / "a.html")] == ["../report.html"]
    cli.run("compare", "--from", run, "--folder", tmp_path)
    report, comparison = pages_about(run, tmp_path / "page.html")
    assert (report["link"], comparison["link"]) == ("run%20%231%20100%25/report.html", "report.html")
    assert embedded(tmp_path / "report.html")["runs"]["rows"][0][-1]["link"] == report["link"]


def test_runs_without_attention_or_images(tmp_path: Path, cli: Commands) -> None:
    tiny = [option for option in TINY if "mlp" not in option]  # a recurrent core has none
    for name, options in (
        ("lstm", ["--core=lstm", f"--frames={frames(1)}", "--video-episodes=1", "--env=rooms:small,episode_frames=40"]),
        ("maze", ["--core=gru", "--frames=32", "--video-episodes=1", "--env=diagnostic:tmaze,length=3"]),
    ):
        cli.run("launch", "--local", "--run", tmp_path / name, *tiny, *options)
        cli.run("report", tmp_path / name, "--episodes=1")
        assert "has no attention" in embedded(tmp_path / name / "report.html")["buckets"]["why"]

    # Images without attention.
    data = embedded(tmp_path / "lstm" / "videos" / "final.html")
    assert "core (lstm) has no attention" in data["without"]
    assert data["episodes"][0]["layers"] == []

    # Vectors, which are shown as bars.
    data = embedded(tmp_path / "maze" / "videos" / "final.html")
    assert data["seen"].startswith("The vector")
    assert data["drawn"] is None
    assert data["sheet"]["height"] == BARS
    cli.run("evaluate", tmp_path / "maze", "--episodes=1", "--video", tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["text", "speech", "images"])
def test_references_are_drawn_in_the_chart_of_their_scale(kind: str) -> None:
    known = KIND[kind].references
    summary = dict.fromkeys(known.values(), 3.0)
    ((title, lines),) = references(PRESETS[kind]("cpu", "lstm"), summary).items()
    assert KIND[kind].scales[0].curve in CHARTS[title].metrics
    assert {line["name"]: line["value"] for line in lines} == dict.fromkeys(known, 3.0)


@pytest.mark.parametrize("kind", ["text", "speech", "images"])
def test_a_sequence_model_is_first_described_by_its_main_number(kind: str) -> None:
    """Of the evaluation if there is one, else of the validation split during training, else the training loss."""
    config = PRESETS[kind]("cpu", "lstm")
    run = Run("folder/a b")
    scale, *_ = KIND[kind].scales

    # The evaluation.
    summary = {"step": 7, "split": "test", scale.final: 3.25}
    summary |= dict.fromkeys(KIND[kind].references.values(), 4.5)
    found = headline(run, config, summary, [])
    number, *_ = found["numbers"]
    assert (number["name"], number["value"]) == (scale.text, "3.250")
    assert all(f"{name} 4.500" in number["note"] for name in KIND[kind].references)
    assert found["about"] == "The test split of the data, after 7 steps of training."

    # The validation split, which not every row has.
    row = {"step": 5, "loss/nll": 1.5}
    found = headline(run, config, {}, [row | {scale.curve: 2.75}, row | {"step": 6}])
    (number,) = found["numbers"]
    assert (number["name"], number["value"]) == (scale.text, "2.750")
    assert number["note"] == "in training, validation split at step 5"
    assert found["command"] == f"compressive {kind} evaluate 'folder/a b'"

    # The training loss.
    (number,) = headline(run, config, {}, [row])["numbers"]
    assert (number["name"], number["value"]) == ("training loss", "1.500")


def test_a_headline_has_three_numbers_and_names_the_others() -> None:
    config = PRESETS["launch"]("level", "lstm")
    summary = {
        "environment": config.env,
        "episodes": 8,
        "return": {"mean": 59.7109, "low": 57.5156, "high": 61.7969},
        "human_normalized": 90.56,
        "human_normalized_capped": 90.56,
        "oracle_normalized": 77.46,
        "oracle_normalized_interval": [74.59, 80.18],
        "correct_choices": {"mean": 0.94, "low": 0.92, "high": 0.957},
        "choices_per_episode": 6.0,
    }
    found = headline(Run("run"), config, summary, [])
    returned, choices, relative = found["numbers"]
    assert (returned["name"], returned["note"]) == ("return", "95 % interval 57.5 to 61.8")
    assert (choices["name"], choices["note"]) == ("correct choices", "95 % interval 92.0 to 95.7 %; chance 50 %")
    assert relative["name"] == "human-normalized score"
    assert "Also: oracle-normalized score 77 % (95 % interval 75 to 80 %" in found["about"]


def test_a_headline_says_that_all_episodes_are_equal() -> None:
    config = PRESETS["launch"]("level", "lstm")
    same = {"environment": "gym:CartPole-v1", "episodes": 8, "return": {"mean": 500.0, "low": 500.0, "high": 500.0}}
    found = headline(Run("run"), config, same, [])
    (number,) = found["numbers"]
    assert (number["value"], number["note"]) == ("500.00", "all episodes equal")
    assert "interval" not in found["about"]


def test_a_resolved_setting_is_no_changed_one(finished: tuple[Path, str]) -> None:
    """The preset's "auto" became the precision of this machine, unless a command asked for it."""
    config = read_config(Run(finished[0]))
    assert PRESETS["launch"](config.preset, "compressive").learner.precision == "auto" != config.learner.precision
    changed = changed_settings(config, [{"command": "compressive launch --agent.torso-size=16"}])
    assert "agent.torso_size" in changed
    assert not {"learner.precision", "actors.precision"} & changed.keys()
    asked = changed_settings(config, [{}, {"command": "compressive launch --learner.precision=float32"}])
    assert asked["learner.precision"] == ["auto", config.learner.precision]
    assert "actors.precision" not in asked


def test_buckets_are_sums_over_slots(recording: Recording) -> None:
    found = attention_by_bucket([recording])

    # Steps at which both kinds of memory, 16 slots each, are full.
    memory_slots = 32
    layers = recording.attention
    is_full = np.all([(layer.steps[:, :memory_slots, 0] >= 0).all(axis=1) for layer in layers], axis=0)
    assert found["full"]
    assert found["steps"] == is_full.sum() > 50

    # Six buckets for each of three kinds of slots, mean over layers, steps and heads.
    weights = np.mean([layer.weights[is_full] for layer in layers], axis=(0, 1, 2))
    expected = []
    for kind in np.split(weights, 3):
        expected += [bucket.sum() for bucket in np.array_split(kind, 6)]
    assert [bar["mean"] for bar in found["bars"]] == pytest.approx(expected, rel=1e-3)
    assert [bar["error"] for bar in found["bars"]] == [None] * 18, "one episode has no spread"


def test_tensorboard_has_the_attention_and_charts(finished: tuple[Path, str]) -> None:
    events = EventAccumulator(str(finished[0]), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()

    # Pictures of attention.
    assert set(tags["images"]) == {"attention/layer_0", "attention/layer_1"}
    (shades,) = events.Images("attention/layer_1")
    assert (shades.width, shades.height) == (360, 360)

    # Charts of which each has a metric, but for a metric that runs of several tasks have.
    layout = layout_pb2.Layout()
    (written,) = events.Tensors("custom_scalars__config__")
    layout.ParseFromString(written.tensor_proto.string_val[0])
    unused = []
    for category in layout.category:
        for chart in category.chart:
            patterns = chart.multiline.tag
            found = [tag for tag in tags["scalars"] if any(re.match(pattern, tag) for pattern in patterns)]
            if not found:
                unused.append(chart.title)
    assert unused == ["return by task"]


def test_each_kind_of_slots_has_its_own_buckets() -> None:
    """Two heads and two steps, of which the second counts: compressed slots 1 and 2, memory 4 to 7, the segment 9."""
    weights = np.zeros((2, 2, 7))
    weights[1] = [1, 2, 4, 5, 6, 7, 9]
    layer: Any = SimpleNamespace(weights=weights, sizes=(2, 4, 1))
    kinds = ("compressed", "memory", "segment")
    sums = _bucket_sums(layer, np.array([False, True]), kinds, {"compressed": 2, "memory": 2, "segment": 1})
    assert sums == [1, 2, 9, 13, 9]


def test_counters_of_an_environment_are_on_the_page(tmp_path: Path, cli: Commands) -> None:
    env = "gym:tests.envs.odd:Odd-v0,metrics=True"
    cli.run("launch", "--local", *SMALL, "--env", env, "--frames=64", "--run", tmp_path / "run")
    cli.run("report", tmp_path / "run", "--episodes=0")
    page = embedded(tmp_path / "run" / "report.html")
    charts = {chart["title"]: chart for chart in page["charts"]}
    assert set(charts["counter/doors"]["series"][0]["y"]) == {3.0}
    assert {"name": "doors", "value": "3.000"}.items() <= page["headline"]["numbers"][1].items()
