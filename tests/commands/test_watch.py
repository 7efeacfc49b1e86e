"""`compressive runs` and `watch`: what they say of runs in any condition, and what the server refuses."""

import contextlib
import html
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from reports.comparison import compare as compare_runs
from reports.comparison import read_run
from reports.comparison_page import write_reports
from reports.overview import Score, ago, describe, find_runs, grouped, learning_curve, read_score
from reports.server import Watch
from storage.errors import UserError
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import Commands

SMALL = Path(__file__).parents[2] / "pretrained" / "small"
Copied = Callable[..., Path]
Ask = Callable[..., tuple[int, dict[str, str], str]]


def configure(run: Path, **values: object) -> None:
    """Replaces values in the configuration of a run."""
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(copied: Copied, tmp_path: Path) -> Path:
    """A finished run, a stopped one deeper, one with a tag for a name, a damaged one, and a link to one outside."""
    (tmp_path / "runs" / "sweep").mkdir(parents=True)
    copied("outside")
    for name in ("runs/finished", "runs/sweep/stopped", "runs/<b>name", "runs/damaged"):
        copied(name)
    config = json.loads((tmp_path / "runs" / "finished" / "config.json").read_text())
    configure(tmp_path / "runs/sweep/stopped", frames=4 * config["frames"])
    configure(tmp_path / "runs/<b>name", seed=7)
    (tmp_path / "runs/damaged/config.json").write_text('{"kind": "<script>"}')
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "runs"


def test_runs_are_found_and_described(folder: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_runs(folder)
    assert set(found) == {"finished", "sweep/stopped", "<b>name", "damaged"}, "no link"
    assert set(find_runs(folder / "finished")) == {"."}

    entry = describe("finished", found["finished"])
    assert (entry.state, entry.kind, entry.data, entry.share) == ("finished", "launch", "rooms:small", 1.0)
    assert str(entry.score).startswith("oracle-normalized")

    # Three lines for a run in a narrow terminal; the last one is a command.
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli.run("runs", folder).splitlines()
    for name, command, options in (("finished", "report", ""), ("sweep/stopped", "launch --resume", " --local")):
        begin = lines.index(str(folder / name))
        _, _, own_name = name.rpartition("/")
        assert lines[begin + 1].split()[0] == own_name
        assert lines[begin + 3] == f"  compressive {command} {folder / name}{options}"
    begin = lines.index(str(folder / "damaged"))
    assert "kind: expected one of launch, text, speech" in lines[begin + 2]

    assert "no runs in" in cli.run("runs", folder / "sweep/stopped/checkpoints")
    cli.refuse("runs", folder / "none", words="No such file")


def test_a_run_is_described_by_the_environment_of_its_scores(folder: Path) -> None:
    configure(folder / "finished", eval_env="rooms:small,episode_frames=100")
    run = find_runs(folder)["finished"]
    assert describe("finished", run).data == "rooms:small,episode_frames=100"


def test_a_damaged_run_is_described_in_one_short_line(tmp_path: Path) -> None:
    """Whatever a foreign configuration has as its environment."""
    config = json.loads((SMALL / "config.json").read_text())
    for env in ("https:/" * 42_000, "x:/" + ":" * 300_000, "a\nb " * 60_000):
        (tmp_path / "config.json").write_text(json.dumps(config | {"env": env}))
        entry = describe("damaged", Run(tmp_path))
        assert entry.state == "damaged"
        assert entry.error.startswith(f"{tmp_path}/config.json: config.env: environment ")
        assert len(entry.error) == 500


def test_runs_that_can_be_compared_are_together(folder: Path) -> None:
    """Runs of one folder on the same data are a group with names of variants; the others of the folder are another."""
    (folder / "sweep/sweep.json").write_text("{}")
    config = json.loads((folder / "<b>name/config.json").read_text())
    configure(folder / "<b>name", learner=config["learner"] | {"discount": 0.5})
    (folder / "alone").mkdir()
    (folder / "alone/config.json").write_text(json.dumps(config | {"env": "rooms:small,episode_frames=100"}))
    entries = [describe(name, run) for name, run in find_runs(folder).items()]
    groups = {(group.folder, group.data): group for group in grouped(folder, entries)}
    assert set(groups) == {("", "rooms:small"), ("", ""), ("sweep", "")}

    together = groups["", "rooms:small"]
    variants = {entry.name: variant for entry, variant in zip(together.entries, together.variants, strict=True)}
    assert variants == {"finished": "compressive (discount 0.92)", "<b>name": "compressive (discount 0.5)"}
    assert not together.sweep

    others = groups["", ""]
    assert {entry.name for entry in others.entries} == {"alone", "damaged"}
    assert groups["sweep", ""].sweep


def test_a_score_is_of_the_evaluation_or_of_training() -> None:
    evaluation = {
        "return": {"mean": 0.5, "low": 0.4, "high": 0.6},
        "oracle_normalized": 66.2,
        "oracle_normalized_interval": [12.1, 98.3],
    }
    row = {"episode/return": 0.25, "episode/oracle_normalized": 5.0}
    assert str(read_score("launch", evaluation, row)) == "oracle-normalized 66 % [12, 98] in the evaluation"
    equal = {"return": {"mean": 0.5, "low": 0.5, "high": 0.5}}
    assert str(read_score("launch", equal, {})) == "return 0.500 all equal in the evaluation"
    assert str(read_score("launch", {"return": "damaged"}, row)) == "oracle-normalized 5.0 % in training"
    huge = {**evaluation, "oracle_normalized_interval": [10**400, 1]}
    assert str(read_score("launch", huge, {})) == "oracle-normalized 66.2 % in the evaluation"
    assert str(read_score("launch", {"return": {"mean": 10**400}}, row)) == "oracle-normalized 5.0 % in training"
    assert read_score("text", {}, {"loss/nll": 1.5}) == Score("loss", 1.5, training=True)
    assert read_score("launch", {}, {"episode/return": float("nan")}) is None


def test_a_small_curve_goes_as_far_as_the_training(folder: Path) -> None:
    """The run was stopped after a quarter of its frames. Places are shares of the whole run."""
    run = Run(folder / "sweep/stopped")
    entry = describe("stopped", run)
    curve = learning_curve(entry.run, entry.config)
    last_place, _ = curve[-1]
    assert last_place == pytest.approx(0.25, abs=0.02)

    measured = [row.get("episode/oracle_normalized") for row in read_metrics(run.path)]
    known = [score for score in measured if score is not None]
    assert min(known) <= min(score for _, score in curve)
    assert max(score for _, score in curve) <= max(known)

    entry.run.metrics_file.unlink()
    assert learning_curve(entry.run, entry.config) == []


def test_small_curves_of_a_group_have_one_scale(folder: Path) -> None:
    """The box is 24 high, with 2 left free on either side; a score that is three times as high is drawn so."""
    name = "episode/oracle_normalized"
    for run, score in (("finished", 1.0), ("<b>name", 3.0)):
        file = folder / run / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows[0][name] = 0.0
        for row in rows[1:]:
            row[name] = score
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with Watch(folder, 0) as server:
        page = server.overview()
    _, _, embedded = page.partition('type="application/json">')
    data = json.loads(embedded.partition("</script>")[0])
    (group,) = (group for group in data["groups"] if group["title"] == "rooms:small" and len(group["rows"]) == 2)
    heights = {}
    for row in group["rows"]:
        _, from_above = row["curve"]["end"]
        heights[row["name"]] = (24 - 2) - float(from_above)
    assert heights == {"finished": pytest.approx(20 / 3, abs=0.1), "<b>name": pytest.approx(20.0, abs=0.1)}


def test_names_and_metrics_may_be_missing(folder: Path, ask: Ask) -> None:
    name = os.fsdecode(b"\xff")
    (folder / "finished").rename(folder / name)
    (folder / "sweep/stopped/metrics.jsonl").unlink()
    assert describe("none", find_runs(folder)["sweep/stopped"]).age == float("inf")
    assert "\\udcff" in ask("/")[2]
    assert ask("/%FF/")[0] == 200
    assert name in find_runs(folder)


def test_runs_in_a_folder_with_any_name_are_compared(copied: Copied, tmp_path: Path) -> None:
    """The name of the folder is not UTF-8. It has links to its comparison, and its runs to their episodes."""
    folder = tmp_path / os.fsdecode(b"b\xffd")
    runs = [copied(f"{folder.name}/{seed}", seed=seed) for seed in (1, 2)]
    with Watch(tmp_path, 0) as server:
        page = server.overview()
        assert "&folder=b%FFd" in page.replace("\\u0026", "&")
        _, make = server.comparison("launch", "rooms:small", folder.name)
        assert "b%FFd/1/videos/final.html" in make()

    write_reports(tmp_path / "out", compare_runs([read_run(run) for run in runs]), {}, "compressive compare")
    assert "../b%FFd/2/videos/final.html" in (tmp_path / "out" / "report.html").read_text()
    assert "b\\udcffd" in (tmp_path / "out" / "report" / "runs.csv").read_text()


def test_ages_have_one_unit() -> None:
    ages = {4.0: "4 s ago", 150.0: "2 min ago", 7300.0: "2 h ago", 1e6: "12 d ago", float("inf"): ""}
    assert {seconds: ago(seconds) for seconds in ages} == ages


@contextlib.contextmanager
def serving(folder: Path, allow: str | None = None) -> Iterator[Watch]:
    """A server of a folder."""
    with Watch(folder, 0, allow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def ask(folder: Path) -> Iterator[Ask]:
    """Sends one request to a server of the folder: status, headers and text."""
    with serving(folder) as server:

        def send(address: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            with contextlib.closing(connection):
                connection.putrequest(method, address, skip_host="Host" in headers)
                for name, value in headers.items():
                    connection.putheader(name, value)
                connection.endheaders()
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace")

        yield send


def test_pages_follow_the_runs(folder: Path, ask: Ask) -> None:
    # Names of runs are text.
    status, headers, text = ask("/")
    assert status == 200
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "<b>name" not in text
    assert "&lt;b&gt;name" in text
    status, _, _ = ask("/%3Cb%3Ename/")
    assert status == 200

    # A page changes with its run.
    run = folder / "sweep/stopped"

    def page_of_run() -> str:
        _, _, text = ask("/sweep/stopped/")
        return text

    before = page_of_run()
    assert page_of_run() == before
    new = read_metrics(run)[-1] | {"step": 10**6, "episode/return": 12345.0, "time": time.time()}
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps(new) + "\n")
    assert "12345.0" in page_of_run()
    with Run(run).lock():
        assert "running" in page_of_run()

    # Comparisons.
    status, _, compared = ask("/?kind=launch&data=rooms:small")
    assert status == 200
    assert all(words in compared for words in ("3 runs: ", "seeds 0, 7"))
    _, _, of_one_folder = ask("/?kind=launch&data=rooms:small&folder=")
    assert "2 runs: " in of_one_folder


def test_what_cannot_be_compared_is_left_out_with_the_reason(copied: Copied, tmp_path: Path) -> None:
    """Copies, runs without scores of where they are evaluated, and those that need a permission."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    copied("mixed/one")
    copied("mixed/two", seed=5)
    copied("mixed/copy")
    frames = 4 * json.loads((folder / "one" / "config.json").read_text())["frames"]
    copied("mixed/elsewhere", frames=frames, eval_env="rooms:small", env="rooms:small,object_scale=1.1")
    with serving(folder) as server:
        runs, make = server.comparison("launch", "rooms:small", None)
        assert len(runs) == 4
        page = make()
    assert "it is the same run as" in page
    assert "it has no score yet of the environment where it is evaluated" in page
    assert "seeds 0, 5" in page

    # Nothing is left: the reasons are the answer.
    own = tmp_path / "own"
    own.mkdir()
    for seed in (1, 2):
        copied(f"own/{seed}", seed=seed, env="gym:some_module:Env-v0")
    with serving(own) as server:
        _, make = server.comparison("launch", "gym:some_module:Env-v0", None)
        with pytest.raises(UserError, match=r"expected runs to compare, got none: .* --allow gym:some_module:Env-v0"):
            make()

    # Commands of pages allow what the user of these runs must allow.
    with serving(own, allow="gym:some_module:Env-v0") as server:
        _, make = server.comparison("launch", "gym:some_module:Env-v0", None)
        compared = html.unescape(make())
        allowed = "--allow gym:some_module:Env-v0"
        assert f"compare --from {own / '1'} {own / '2'} {allowed}" in compared
        assert f"visualize {own / '1'} {allowed}" in compared
        assert f"report {own / '1'} {allowed}" in html.unescape(server.report("1", Run(own / "1")))


def test_runs_on_other_data_are_left_out_of_a_comparison() -> None:
    """As bytes and words of one text."""
    runs = [SimpleNamespace(data=data, summary={"bits": 1.0}, path=path, is_same_as=lambda other: False)
            for path, data in (("a", "text"), ("b", "text (words)"), ("c", "text"))]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        by_path = {run.path: run for run in runs}
        patch.setattr("reports.server.read_run", lambda path, allow, live: by_path[str(path)])
        server = SimpleNamespace(allow=None)
        found, missing = Watch._comparable(server, [Run(run.path) for run in runs])  # type: ignore[arg-type]
    assert [run.path for run in found] == ["a", "c"]
    assert missing == {"b": "it learned from text (words), and these runs from text"}


def test_only_pages_and_videos_of_runs_are_sent(folder: Path, tmp_path: Path, ask: Ask) -> None:
    # A whole file and a part.
    status, headers, text = ask("/finished/videos/final.html")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert text == (folder / "finished/videos/final.html").read_text()
    status, headers, part = ask("/finished/videos/final.html", Range="bytes=2-11")
    assert (status, headers["Content-Range"], part) == (206, f"bytes 2-11/{len(text.encode())}", text[2:12])
    status, _, beyond_the_end = ask("/finished/videos/final.html", Range="bytes=999999999-")
    assert (status, beyond_the_end) == (200, text)

    # Other files, other folders, and links.
    (folder / "finished/videos/outside.html").symlink_to(tmp_path / "outside/videos/final.html")
    (folder / "finished/videos/notes.txt").write_text("secret")
    for path in (
        *("/finished/config.json", "/finished/videos/notes.txt", "/finished/videos/", "/finished", "/link/", "/none/"),
        *("/../outside/", "/%2e%2e/outside/", "/finished/videos/../../../outside/videos/final.html", "//etc/passwd"),
        *("/finished/videos/%2e%2e/videos/final.html", "/link/videos/final.html", "/sweep/", "/.//finished/"),
    ):
        assert ask(path)[0] == 404, path
    assert ask("/finished/videos/outside.html")[0] == 500, "a link"
    status, _, text = ask("/damaged/")
    assert status == 500
    assert "<script>" not in text
    assert ask("/?kind=launch&data=none")[0] == 404

    # Requests of other pages.
    for host in ("example.org", "127.0.0.1", ""):
        assert ask("/", Host=host)[0] == 403, "a name that leads here from elsewhere"
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask("/", method=method)[0] == 501
