"""Agents on the Hugging Face Hub, for which a server on this machine stands: nothing here leaves it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.card import _scores
from storage import checkpoints
from tests import hub
from tests.commands.cli import Commands, run
from tests.hub import Hub

huggingface_hub = pytest.importorskip("huggingface_hub")
NAME = "me/agent"
SHORT = "rooms:small,episode_frames=100"
"""An environment whose episodes are filmed in a second."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub of this machine, in place of the real one."""
    with hub.running() as server:
        # What HF_ENDPOINT and HF_HOME set when the package is imported.
        file = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", file)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home"))
        yield server


@pytest.fixture
def ask(here: Hub, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command as in a process of its own: with this token, and nothing that was listed before.

    With `refused` the command must end with one line that holds these words.
    """

    def call(*words: object, token: str = hub.TOKEN, refused: str = "") -> str:
        monkeypatch.setenv("HF_TOKEN", token)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        output = cli.refuse(*words, words=refused) if refused else cli.run(*words)
        assert "Traceback" not in cli.printed
        assert hub.TOKEN not in cli.printed
        return output

    return call


@pytest.mark.slow
def test_the_hub_is_asked_by_a_process_with_its_own_settings(here: Hub, tmp_path: Path, copied: Any) -> None:
    settings = {"HF_ENDPOINT": here.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": hub.TOKEN}
    result = run("push", copied(), NAME, "--video-episodes=0", **settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"evaluate hf://{NAME}" in result.stdout
    assert hub.TOKEN not in result.stdout
    assert set(here.files) == {NAME}
    assert run("pull", NAME, tmp_path / "pulled", **settings).returncode == 0
    assert (tmp_path / "pulled" / "config.json").is_file()


def test_a_score_without_a_number_of_episodes_has_its_interval() -> None:
    assert _scores({"return": {"mean": 1.0, "low": 0.5, "high": 2.0}}) == [
        ("mean_reward", 1.0, "return, 95 % [0.5, 2]")
    ]
    assert _scores({"return": {"mean": 1.0, "low": 0.5, "high": 10**400}}) == [("mean_reward", 1.0, "return")]
    assert _scores({"return": {"mean": 10**400}}) == []


@pytest.mark.slow
def test_an_agent_goes_to_the_hub_and_comes_back(
    here: Hub, ask: Callable[..., str], copied: Callable[..., Path], tmp_path: Path
) -> None:
    run = copied(env=SHORT)

    # The files that are pushed.
    assert f"evaluate hf://{NAME}" in ask("push", run, NAME, "--license=mit")
    assert here.unknown == []
    files = here.files[NAME]
    assert {"config.json", "README.md", "curve.png", "replay.mp4", "evaluation.json"} < set(files)
    assert not [path for path in files if path.endswith(".html")]
    assert not [path for path, content in files.items() if hub.TOKEN.encode() in content]

    # Its card.
    card = files["README.md"].decode()
    metadata = yaml.safe_load(re.match(r"---\n(.*?)\n---", card, re.DOTALL)[1])
    evaluation = json.loads(files["evaluation.json"])
    (result,) = metadata["model-index"][0]["results"]
    assert (metadata["license"], metadata["library_name"]) == ("mit", "compressive-impala")
    assert f"return over {evaluation['episodes']} episodes, 95 % [" in result["metrics"][0]["name"]
    assert result["metrics"][0]["value"] == pytest.approx(evaluation["return"]["mean"], abs=1e-3)
    assert result["dataset"]["type"] == SHORT
    for line in ("| core | compressive |", f"compressive evaluate hf://{NAME}", "--local", "curve.png"):
        assert line in card

    # It plays the same from a pulled folder and from the hub.
    pulled = tmp_path / "pulled"
    ask("pull", NAME, pulled)
    step = checkpoints.load_latest(pulled).step
    assert step == checkpoints.load_latest(run).step
    words = ("--episodes=2", "--json", "--greedy")
    (near,) = json.loads(ask("evaluate", pulled, *words))
    (far,) = json.loads(ask("evaluate", f"hf://{NAME}", *words))
    assert far["return"] == near["return"]
    assert far["run"] == f"hf://{NAME}"
    assert far["checkpoint"] == f"hf://{NAME}/checkpoints/{step:012d}"
    ask("visualize", f"hf://{NAME}@v1", "--episodes=1", f"--output={tmp_path / 'shown'}")
    assert (tmp_path / "shown" / "episodes.html").is_file()

    # Another commit, without a video.
    ask("push", run, NAME, "--video-episodes=0")
    assert "replay.mp4" not in here.files[NAME]
    assert ".gitattributes" in here.files[NAME]
    assert len(here.messages[NAME]) == 2


def test_a_checkpoint_goes_to_the_hub_without_the_end(here: Hub, ask: Callable[..., str], copied: Any) -> None:
    run = copied()
    early, *_, last = sorted((run / "checkpoints").iterdir())
    ask("push", early, NAME, "--video-episodes=0")
    files = here.files[NAME]
    assert f"checkpoints/{early.name}/weights.safetensors" in files
    assert not [path for path in files if last.name in path]
    steps = [json.loads(line)["step"] for line in files["metrics.jsonl"].decode().splitlines()]
    assert max(steps, default=0) <= int(early.name)
    card = files["README.md"].decode()
    assert "It was not evaluated." in card
    assert "model-index" not in card
    (message,) = here.messages[NAME]
    assert early.name in message


def test_only_files_of_a_run_are_copied(here: Hub, ask: Callable[..., str], tmp_path: Path, copied: Any) -> None:
    ask("push", copied(), NAME, "--video-episodes=0", "--private")
    assert NAME in here.private

    # Files that are no part of a run, one of them outside of its folder.
    here.files[NAME] |= {
        "report.html": b"<script>",
        "checkpoints/../../../outside.json": b"{}",
        "checkpoints/000000000001/code.py": b"raise SystemExit",
        "videos/final.html": b"<script>",
        "pytorch_model.bin": b"pickle",
    }
    ask("pull", NAME, tmp_path / "pulled")
    found = {path.name for path in (tmp_path / "pulled").rglob("*") if path.is_file()}
    expected = {"config.json", "metrics.jsonl", "launches.jsonl", "evaluation.json", "README.md", "curve.png"}
    assert found == expected | {"state.json", "weights.safetensors"}


def test_what_the_hub_and_its_commands_refuse(here: Hub, ask: Callable[..., str], tmp_path: Path, copied: Any) -> None:
    agent = copied()

    # Pushes.
    ask("push", agent, NAME, token="hf_wrong", refused="hf auth login")
    assert here.files == {}
    ask("push", agent, "agent", refused="expected USER/NAME, as on huggingface.co, got 'agent'")
    ask("push", tmp_path, NAME, refused="is not a run")

    # Names that the hub does not have.
    ask("pull", "me/nothing", tmp_path / "pulled", refused="hf://me/nothing")
    ask("pull", "me/nothing", agent, refused="output: expected a new folder")
    ask("evaluate", "hf://me/nothing", refused="hf://me/nothing")
    ask("visualize", "hf://me/nothing", refused="output: expected a folder")

    # Another library's model, and a damaged run.
    here.files[NAME] = {"README.md": b"a model of another library"}
    ask("pull", NAME, tmp_path / "pulled", refused="expected the folder of a run, with config.json")
    ask("push", agent, "me/damaged", "--video-episodes=0")
    files = here.files["me/damaged"]
    (weights,) = (path for path in files if path.endswith("safetensors"))
    files[weights] = files[weights][:-1]
    ask("pull", "me/damaged", tmp_path / "pulled", refused="no checkpoint that can be read")
    assert not (tmp_path / "pulled").exists()


def test_the_commands_of_a_card_allow_the_agents_own_code(here: Hub, ask: Callable[..., str], copied: Any) -> None:
    """The environment, and no place of checkpoints: they are in the shared folder."""
    env = "gym:my_module:Env-v0"
    said = ask("push", copied(env=env), NAME, "--video-episodes=0")
    assert f"evaluate hf://{NAME} --allow {env}\n" in said
    card = here.files[NAME]["README.md"].decode()
    assert f"compressive evaluate hf://{NAME} --allow {env}\n" in card
    assert f"visualize hf://{NAME} --output episodes --allow {env}  " in card


def test_a_copied_run_asks_for_permissions(here: Hub, ask: Callable[..., str], tmp_path: Path, copied: Any) -> None:
    ask("push", copied(), NAME, "--video-episodes=0")
    config = json.loads(here.files[NAME]["config.json"])
    for field, value in (("env", "dm:evil_module:Env"), ("checkpoint_url", "file:///tmp/elsewhere")):
        here.files[NAME]["config.json"] = json.dumps(config | {field: value}).encode()
        ask("evaluate", f"hf://{NAME}", refused="--allow")
    ask("pull", NAME, tmp_path / "pulled", refused="got one whose checkpoints are at file:///tmp/elsewhere")


def test_a_run_behind_any_url(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copied("source")
    url = f"file://{source}"
    with monkeypatch.context() as patch:
        patch.setattr("storage.remote.MOST_BYTES", 1000)
        cli.refuse("pull", url, tmp_path / "pulled", words=[f"{url} has ", "bytes, expected at most 1000"])
    (evaluated,) = json.loads(cli.run("evaluate", url, "--episodes=2", "--json"))
    assert evaluated["run"] == url
    assert cli.run("pull", url, tmp_path / "pulled here").endswith(f"visualize '{tmp_path}/pulled here'\n")
    cli.run("pull", url, tmp_path / "pulled")
    assert checkpoints.load_latest(tmp_path / "pulled").step == checkpoints.load_latest(source).step

    # Links are left out, since they may lead to any file.
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    for name in ("README.md", "evaluation.json"):
        (source / name).unlink(missing_ok=True)
        (source / name).symlink_to(secret)
    cli.run("pull", url, tmp_path / "without links")
    found = {path.name for path in (tmp_path / "without links").iterdir()}
    assert found == {"config.json", "metrics.jsonl", "launches.jsonl", "checkpoints"}
    cli.refuse("pull", "s3://me:secret@bucket/run", tmp_path / "other", words="URL without a password")
    cli.refuse("pull", "nonsense://bucket/run", tmp_path / "other", words="nonsense://bucket/run: ValueError")
