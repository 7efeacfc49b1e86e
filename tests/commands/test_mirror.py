"""`compressive mirror` into W&B's own files, without a network: rows, configuration, and a run that still trains."""

import json
import os
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from commands import mirror as command
from storage.metrics import FILE, read_metrics
from storage.run import Run
from tests.commands.cli import Commands
from tests.waiting import wait_until
from training.plain import by_full_name

SMALL = Path(__file__).parent.parent.parent / "pretrained" / "small"
COPIED = f"{len(read_metrics(SMALL))} rows of metrics copied"


def records(folder: Path) -> Iterator[Any]:
    """The records of the only copy in a folder: W&B writes LevelDB's log format behind seven bytes of its own.

    A block has parts of records, each behind a header of its checksum, length and kind.
    """
    block_size = 32768
    header_size = 7
    whole, last_part = 1, 4

    wandb.teardown()  # ends the process that writes it
    (path,) = folder.rglob("*.wandb")
    content = path.read_bytes()
    position = 7
    parts = b""
    while position + header_size <= len(content):
        _, length, kind = struct.unpack_from("<IHB", content, position)
        place_in_block = position % block_size
        if kind == 0 or place_in_block > block_size - header_size:  # the rest of the block is empty
            position += block_size - place_in_block
            continue
        position += header_size
        parts += content[position : position + length]
        position += length
        if kind in (whole, last_part):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def copied_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows as in `metrics.jsonl`; W&B's own time is the row's."""
    rows = []
    for record in records(folder):
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            row = {name: json.loads(value) for name, value in items.items()}
            assert row.pop("_timestamp") == row["time"]
            rows.append({name: value for name, value in row.items() if not name.startswith("_")})
    return rows


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where W&B writes."""
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": tmp_path, "WANDB_CACHE_DIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    for hook in ("exit", "excepthook"):  # which W&B replaces
        monkeypatch.setattr(sys, hook, getattr(sys, hook))
    yield tmp_path
    wandb.teardown()  # a process has one service, which has read these variables


def test_rows_and_configuration_are_copied(place: Path, cli: Commands) -> None:
    assert COPIED in cli.run("mirror", SMALL, "--project", "rooms")
    assert copied_rows(place) == read_metrics(SMALL)

    # The configuration is copied, and nothing about the machine.
    (begun,) = (record.run for record in records(place) if record.HasField("run"))
    assert (begun.project, begun.display_name) == ("rooms", "small")
    config = {update.key: json.loads(update.value_json) for update in begun.config.update}
    assert not begun.host
    kinds = {record.WhichOneof("record_type") for record in records(place)}
    assert kinds.isdisjoint({"stats", "environment", "metadata"})
    saved = json.loads((SMALL / "config.json").read_text())["agent"]
    copied = by_full_name(config["agent"])
    assert by_full_name(saved).items() <= copied.items(), "an older run lacks newer fields"


def test_a_run_is_followed_until_it_ends(place: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EVERY", 0.05)
    folder = shutil.copytree(SMALL, place / "run")
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join(lines[:3]))
    printed: list[str] = []

    # The run still trains, and writes its rows in two pieces each.
    with Run(folder).lock():
        thread = threading.Thread(target=lambda: printed.append(cli.run("mirror", folder, "--follow")))
        thread.start()
        wait_until(lambda: list(place.rglob("*.wandb")), patience=60)
        with (folder / FILE).open("ab", buffering=0) as file:
            for line in lines[3:]:
                os.write(file.fileno(), line[:9])
                os.write(file.fileno(), line[9:])
        assert thread.is_alive()

    # It has ended.
    thread.join(60)
    assert COPIED in printed[0]
    assert copied_rows(place) == read_metrics(SMALL)


def test_what_is_not_a_run_is_refused_before_anything_is_written(place: Path, cli: Commands) -> None:
    cli.refuse("mirror", place, words="config.json")
    cli.refuse("mirror", SMALL, "--project=a/b", words="project name")
    assert not list(place.iterdir())
