"""Passwords and tokens of URLs: refused where they are typed, and found neither in files nor on the terminal."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from commands import main
from learner import checkpoints
from learner.files import redact, require_no_secret
from tests.commands.cli import TINY, frames, refusal

Capture = pytest.CaptureFixture[str]
SECRET = "xyzzy42"
URLS = [
    f"s3://key:{SECRET}@bucket/run",
    f"s3://key:{SECRET}/+@bucket/run",
    f"s3://key:4{SECRET} @bucket/run",
    f"s3://key%3A{SECRET}@bucket/run",
    f"S3://key:{SECRET}@bucket",
    f"https://{SECRET}@host/run",
    f"sftp://user:{SECRET}@host:22/run",
    f"https://host/run?token={SECRET}",
    f"https://host/run?a=b&X-Amz-Signature={SECRET}",
    f"abfs://container@account.dfs.core.windows.net/run?sv=1;sig={SECRET}",
    f"simplecache::s3://key:{SECRET}@bucket/run",
    f"filecache::https://host/run#access_token={SECRET}",
]
HARMLESS = [
    "s3://bucket/run",
    "s3://bucket/a:b/c@d=e",
    "sftp://user@host:22/a@b",
    "hdfs://user@node:8020/run",
    "abfs://container@account.dfs.core.windows.net/run",
    "http://127.0.0.1:9000/a@b",
    "file:///mnt/my run",
    "memory://run",
]


@pytest.mark.parametrize("url", HARMLESS)
def test_other_urls_are_left_alone(url: str) -> None:
    require_no_secret(url)
    assert redact(f"{url} cannot be read; go on with: --resume {url}").count(url) == 2


@pytest.mark.parametrize("url", URLS)
def test_a_url_with_a_secret_is_refused_without_showing_it(url: str, tmp_path: Path, capfd: Capture) -> None:
    run = tmp_path / "run"
    plain = {"checkpoint_url": url}
    for arguments in (
        ["launch", "--local", "--run", str(run), *TINY, "--checkpoint-url", url],
        ["launch", "--local", "--run", str(run), "--resume", url],
    ):
        error = refusal(arguments, capfd)
        assert SECRET not in error
        assert "***" in error
        assert "credentials belong in the environment" in error
        assert not run.exists()
    run.mkdir()
    (run / "config.json").write_text(json.dumps(plain))
    for command in (["launch", "--resume"], ["evaluate"], ["status"], ["report"], ["visualize"]):
        error = refusal([*command, str(run)], capfd)
        assert SECRET not in error
        assert f"{run / 'config.json'}: config.checkpoint_url: " in error
    if " " not in url:  # amid words, that is where it ends
        assert SECRET not in refusal(["evaluate", url], capfd), "typed in the wrong place"


class Guarded(DirFileSystem):
    """A folder for those who give the password, and errors that quote it, as libraries do."""

    protocol = "guarded"
    root = ""
    broken = False

    def __init__(self, password: str | None = None, **options: Any) -> None:
        self.given = password
        super().__init__(path=Guarded.root, fs=LocalFileSystem())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("guarded://").rstrip("/")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        if self.given != SECRET:
            raise PermissionError("this password is wrong")
        if Guarded.broken:
            raise ConnectionError(f"PUT https://user:{SECRET}@host/{path}?X-Amz-Signature={SECRET} failed")
        return super().pipe_file(path, value, **options)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A store that asks for a password; `guarded(variables)` reads these from the environment as fsspec does."""
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    monkeypatch.setattr(Guarded, "root", str(tmp_path / "store"))
    monkeypatch.setattr(checkpoints, "PAUSES", ())
    before = dict(fsspec.config.conf)

    def configure(**variables: str) -> None:
        Guarded.clear_instance_cache()
        fsspec.config.set_conf_env(fsspec.config.conf, variables)

    yield configure
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)
    Guarded.clear_instance_cache()


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_credentials_from_the_environment_reach_the_store_and_nothing_else(
    guarded: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    run, url = tmp_path / "run", "guarded://bucket/run"
    new = ["launch", "--local", "--run", str(run), f"--frames={frames(3)}", *TINY, "--checkpoint-url", url]
    assert "this password is wrong" in refusal(new, capfd)

    guarded(FSSPEC_GUARDED_PASSWORD=SECRET)
    main(new)
    main(["launch", "--local", "--resume", str(run), f"--frames={frames(5)}"])
    main(["launch", "--local", "--resume", url, "--run", str(tmp_path / "again"), f"--frames={frames(7)}"])
    for command in (["report", "--episodes=0"], ["status"]):
        main([*command, str(run)])
    assert checkpoints.load_latest(url).step > 0
    printed = capfd.readouterr()

    monkeypatch.setattr(Guarded, "broken", True)
    error = refusal(["launch", "--local", "--resume", str(run), f"--frames={frames(9)}"], capfd)
    assert f"{url} cannot be read or written: ConnectionError: PUT https://***@host/" in error
    assert SECRET not in error + printed.out + printed.err
    assert SECRET.encode() not in files(tmp_path)


def test_warnings_before_another_try_show_no_secret(
    guarded: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guarded(FSSPEC_GUARDED_PASSWORD=SECRET)
    monkeypatch.setattr(Guarded, "broken", True)
    monkeypatch.setattr(checkpoints, "PAUSES", (0.0,))
    with pytest.raises(checkpoints.StorageError):
        checkpoints.Checkpoints("guarded://bucket/run").claim("me")
    assert "ConnectionError: PUT https://***@host/" in caplog.text
    assert SECRET not in caplog.text
