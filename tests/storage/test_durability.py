"""What a power failure, a file server and other machines do to what was written."""

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sequences.prepared import write_split
from storage import stores
from storage.errors import StorageError
from storage.files import new_folder, replacing
from storage.run import Run
from storage.stores import DiskStore, UrlStore, installation


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed to the disk and what gets its name, in order; random parts of names are stars."""
    found: list[str] = []
    fsync = os.fsync
    rename = Path.rename
    replace = Path.replace

    def note(what: str, path: Any) -> None:
        name = re.sub(r"-[0-9a-f]{8}[.]tmp", "-*.tmp", Path(path).name)
        found.append(f"{what} {name}")

    def noted_fsync(descriptor: int) -> None:
        note("flush", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(path: Path, target: Any) -> Path:
        renamed = rename(path, target)
        note("name", target)
        return renamed

    def noted_replace(path: Path, target: Any) -> Path:
        renamed = replace(path, target)
        note("name", target)
        return renamed

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(Path, "replace", noted_replace)
    return found


def test_what_gets_a_name_is_on_the_disk_before(tmp_path: Path, done: list[str]) -> None:
    """First the content, then the name: a power failure leaves the old file or the new one."""
    with replacing(tmp_path / "page.html") as temporary:
        temporary.write_text("new")
    assert done == ["flush page.html-*.tmp", "name page.html", f"flush {tmp_path.name}"]

    done.clear()
    with new_folder(tmp_path / "corpus"):
        pass
    assert done == ["flush corpus-*.tmp", "name corpus", f"flush {tmp_path.name}"]

    done.clear()
    write_split(tmp_path, "train", [np.zeros(3, np.int64)], 256)
    assert done == ["flush train.tokens"]


def test_a_checkpoint_that_has_its_name_is_on_the_disk(tmp_path: Path, done: list[str]) -> None:
    content = [("weights.safetensors", b"1"), ("state.json", b"2")]
    name = "000000000012"
    files = ["flush weights.safetensors", "flush state.json"]
    DiskStore(tmp_path).write(name, content)
    assert done == [*files, f"flush {name}-*.tmp", f"name {name}", "flush checkpoints"]

    # The same step again: first beside the old one, then in its place.
    done.clear()
    DiskStore(tmp_path).write(name, content)
    beside = f"{name}-1"
    written_beside = [*files, f"flush {beside}-*.tmp", f"name {beside}", "flush checkpoints"]
    assert done == [*written_beside, f"name {name}-*.tmp", f"name {name}", "flush checkpoints"]


def test_a_file_server_that_does_not_answer_for_a_moment_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    stat = os.stat

    def fails(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(".lock"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return stat(path, *arguments, **options)

    with run.claim(new=True, saved=lambda: True), monkeypatch.context() as patch:
        patch.setattr(os, "stat", fails)
        assert not run.lost
        run.require()


class Listing(MemoryFileSystem):
    """Caches its listings until `invalidate_cache` is called, as s3fs does."""

    protocol = "listing"
    store: dict[str, Any] = {}  # noqa: RUF012 (as in the class of fsspec)
    pseudo_dirs = [""]  # noqa: RUF012
    remembered: dict[str, Any] = {}  # noqa: RUF012

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        if path not in self.remembered:
            self.remembered[path] = super().find(path, *arguments, **options)
        return self.remembered[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.remembered.clear()


def test_what_another_machine_has_written_is_seen(tmp_path: Path) -> None:
    fsspec.register_implementation("listing", Listing, clobber=True)
    store = UrlStore(f"listing://{tmp_path}/run")
    first = store.write("000000000010", [("state.json", b"1")])
    assert store.names() == [first]
    second = "000000000020-abcdef"
    (path,) = Listing.store
    Listing.store[path.replace(first, second)] = Listing.store[path]
    assert sorted(store.names()) == [first, second]


def test_what_a_store_cannot_do_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(stores, "time", SimpleNamespace(sleep=pauses.append))
    store = UrlStore(f"memory://{tmp_path}/run")

    def find(*_: Any, **options: Any) -> Any:
        raise NotImplementedError("no listings")

    monkeypatch.setattr(store._fs, "find", find)
    with pytest.raises(StorageError, match="cannot be read or written: NotImplementedError: no listings"):
        store.names()
    assert pauses == []


def test_a_missing_package_of_a_store_is_named_with_the_extra() -> None:
    missing = ImportError("Install s3fs to access S3")
    assert installation("s3://bucket/agent", missing) == ": pip install -e '.[s3]'"
    assert installation("s3://bucket/agent", OSError("denied")) == ""
    assert installation("gs://bucket/agent", missing) == ""
