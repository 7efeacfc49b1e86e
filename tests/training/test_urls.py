"""Checkpoints behind a URL, which several runs want: the last one owns it, if it can be resumed."""

import dataclasses
from pathlib import Path

import pytest

from storage import checkpoints
from storage.errors import UserError
from storage.run import Run
from tests.training.test_trainer import AGENT, CONFIG
from training.trainer import Trainer


def test_the_last_of_two_runs_owns_a_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    config = dataclasses.replace(CONFIG, checkpoint_url=url)
    first = Trainer(config, Run(tmp_path / "first"), local=True)
    second = Trainer(config, Run(tmp_path / "second"), local=True)

    # The first run claims the URL as a new one; the second may not.
    first.claim_url(new=True)
    first.train(lambda progress: None, lambda: True)
    with pytest.raises(ValueError, match=f"{url} already has checkpoints: expected a new URL, or --resume {url}"):
        second.claim_url(new=True)
    first.save()

    # One whose network does not fit the checkpoints does not displace it.
    larger = dataclasses.replace(config, agent=dataclasses.replace(AGENT, torso_size=16))
    with pytest.raises(ValueError, match="size mismatch"):
        Trainer(larger, Run(tmp_path / "larger"), local=True).begin_or_restore(new=False)
    first.save()

    # The second run resumes from the URL, and displaces the first.
    second.claim_url(new=False)
    second.restore()
    with pytest.raises(UserError, match=rf"taken over by {second.run} on .*; this run ends with {first.saved}"):
        first.save()
    assert checkpoints.load_latest(url).path == first.saved, "the first wrote after it was displaced"
    second.save()
    assert checkpoints.load_latest(url).path == second.saved != first.saved
