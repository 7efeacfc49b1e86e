"""A run that was split into pieces and joined has its weights, and continues."""

from pathlib import Path

import pytest
import torch

from benchmarks import pieces
from learner import checkpoints
from tests.training.test_impala import train
from tests.training.test_resident import CONFIG
from training.run import Run


def test_a_run_travels_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LARGEST", 20_000)
    trainer = train(CONFIG, tmp_path / "run", 1)
    trainer.run.write_config({})
    pieces.split(trainer.run, tmp_path / "pieces")
    sizes = [path.stat().st_size for path in (tmp_path / "pieces").glob("*.safetensors")]
    assert len(sizes) > 2
    assert max(sizes) < 60_000, "a piece, or one larger tensor"
    pieces.join(tmp_path / "pieces", Run(tmp_path / "again"))
    before, after = (checkpoints.load_latest(tmp_path / name) for name in ("run", "again"))
    assert after.state == before.state
    torch.testing.assert_close(after.parts["weights"], before.parts["weights"], rtol=0, atol=0)
    optimizers = [checkpoint.parts["optimizer"] for checkpoint in (before, after)]
    assert optimizers[0].keys() == optimizers[1].keys()
    for name, tensor in optimizers[0].items():
        expected = torch.zeros_like(tensor) if name.endswith("exp_avg") else tensor
        torch.testing.assert_close(optimizers[1][name], expected, rtol=0.01, atol=0)
    assert train(CONFIG, tmp_path / "again", 1, resume=True).learner.version == 2 * trainer.learner.version


@pytest.mark.parametrize("existing", ["target", "source"])
def test_nothing_is_overwritten_and_the_source_must_exist(existing: str, tmp_path: Path) -> None:
    (tmp_path / existing).mkdir()
    for what in ("split", "join"):
        with pytest.raises(SystemExit, match=f"{what}: "):
            pieces.main(what, tmp_path / "source", tmp_path / "target")
