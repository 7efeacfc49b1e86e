"""Runs that are elsewhere: copied from a folder behind any fsspec URL, such as hf://USER/NAME of the Hugging Face Hub.

Only the files of a run are copied, under their own names, and nothing in them can run code. The Hub is asked through
huggingface_hub, which finds its token in the environment or where `hf auth login` has put it; none is read here.
"""

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec.core import url_to_fs

from storage import files
from storage.errors import StorageError
from storage.run import Run, find_run
from storage.stores import installation

SCHEME = "hf://"
"""How the URL of a repository on the Hub begins."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_RUN_FILE = re.compile(
    r"config\.json|metrics\.jsonl|launches\.jsonl|evaluation(-[\w-]+)?\.json"
    r"|tokenizer\.json|corpus\.json"  # of sequence models
    r"|README\.md|curve\.png|replay\.mp4"  # what `compressive push` adds
    r"|checkpoints/[0-9]{12,18}(-[0-9a-f]+)?/([\w-]+\.safetensors|state\.json)"
)
"""What is copied of a run: no pages, which a browser would run."""
MOST_BYTES = 64 << 30
"""Larger runs are not copied."""


def require_hub_name(name: str) -> str:
    """The name of a repository on the Hub, USER/NAME, also given as hf://USER/NAME.

    Raises:
        ValueError: if it is none.
    """
    bare = name.removeprefix(SCHEME).rstrip("/")
    if not _HUB_NAME.fullmatch(bare):
        raise ValueError(f"expected USER/NAME, as on huggingface.co, got {files.abbreviate(name)}")
    return bare


def copy_run(url: str, folder: Path) -> None:
    """Copies a run from a URL into an empty folder.

    Raises:
        ValueError: if the URL has a password in it, or no run is there.
        ImportError: if a package is missing.
        StorageError: if the URL cannot be read.
    """
    files.require_no_secret(url)
    if url.startswith(SCHEME):
        _require_hub()
    with _storage_errors(url):
        system, root = url_to_fs(url.rstrip("/"))
        found = system.find(root, detail=True)

    # The files of a run among them: where each is, by its name in the run.
    paths: dict[str, str] = {}
    size = 0
    for path, info in found.items():
        name = path.removeprefix(root).strip("/")
        is_link = bool(info.get("islink"))  # behind file:// it may lead to any file of the user
        if _RUN_FILE.fullmatch(name) and not is_link:
            paths[name] = path
            size += info["size"] or 0  # None where it is not known before the file is read
    if "config.json" not in paths:
        raise ValueError(f"{url}: expected the folder of a run, with config.json, got {len(found)} other files")
    if size > MOST_BYTES:
        raise ValueError(f"{url} has {size} bytes, expected at most {MOST_BYTES}")

    for name, path in paths.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _storage_errors(url):
            system.get_file(path, str(target))


@contextmanager
def opened(name: str) -> Iterator[Run]:
    """The run in a folder, see `find_run`; or, of a URL, a copy that exists as long as the context.

    Raises:
        ValueError, ImportError, StorageError: see `copy_run`.
    """
    if not files.is_url(name):
        yield find_run(name)
        return
    with tempfile.TemporaryDirectory(prefix="compressive-") as temporary:
        last = name.rstrip("/").rpartition("/")[2]
        folder = Path(temporary) / (last.strip(".") or "run")  # pages show the name
        folder.mkdir()
        copy_run(name, folder)
        yield Run(folder)


def require_login(name: str) -> str:
    """The name of a repository on the Hub, as `require_hub_name` gives it, if the user is logged in there.

    Raises:
        ImportError: if huggingface_hub is missing.
        ValueError: if the name is none of the Hub.
        StorageError: if the user is not logged in, or the Hub cannot be reached.
    """
    name = require_hub_name(name)
    _require_hub()
    from huggingface_hub import HfApi

    with _storage_errors(f"{SCHEME}{name}"):
        HfApi().whoami()
    return name


def push_folder(folder: Path, name: str, private: bool, message: str) -> str:
    """Makes a folder the content of a repository on the Hub, in one commit; returns the repository's address.

    Of earlier content only the files that the repository itself needs are kept. The repository is made if it does not
    exist; an existing one stays as private or public as it is. `name` is that of `require_login`.

    Raises:
        StorageError: if the Hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi

    with _storage_errors(f"{SCHEME}{name}"):
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns="*")
    return str(address)


def _require_hub() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ImportError(f"{SCHEME} needs huggingface_hub: pip install -e '.[hub]'")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    """Turns what packages raise, each with exceptions of its own, into a StorageError of one line."""
    try:
        yield
    except Exception as error:
        raise StorageError(f"{url}: {_reason(error)}{installation(url, error)}") from error


def _reason(error: Exception) -> str:
    """What went wrong, and what to do where that is known."""
    # Of several lines the first says it. Some errors have no text.
    text = type(error).__name__
    for line in str(error).splitlines():
        if line.strip():
            text += f": {line.strip()}"
            break
    text = files.redact(text)

    # What HTTP libraries raise has the server's answer.
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status in (401, 403):
        text += " (log in with `hf auth login`, or set HF_TOKEN to a token that may write there)"
    return text
