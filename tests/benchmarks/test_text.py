"""What the comparison of language models compares: equal cost, the paper's rows, and compressors on the same bytes."""

import bz2
from pathlib import Path

from benchmarks.text import TABLE_5, Options, compressors, run, table, variants
from text.corpora import load


def test_variants_cost_the_same_attention_and_see_the_same_tokens() -> None:
    for compare in ("cores", "compressions"):
        configs = variants(Options(compare=compare, steps=40))
        assert "transformer-xl" in configs
        for config in configs.values():
            core, learner = config.model.core, config.learner
            assert core.memory_size + core.compressed_size == 128
            assert learner.batch_size * learner.sequence_length == 16 * 64
            assert learner.warmup_steps + learner.decay_steps == learner.steps == 40
    assert [name for name in configs if name != "transformer-xl"] == [", ".join(row) for row in TABLE_5]


def test_a_tiny_comparison(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"line {index}\n" for index in range(3000)))
    options = Options(corpus="folder", path=str(corpus), tokens="bytes", steps=1)
    config = variants(options)["compressive"]
    found = run("compressive", config, tmp_path / "run")
    assert found["tokens"] == 16 * 64
    held = b"".join(document.read() for document in load("folder", corpus)["test"])
    bits = compressors(load("folder", corpus))
    assert bits["bz2 -9, alone"] == 8 * len(bz2.compress(held, 9)) / len(held)
    assert bits["xz -9e, after the training text"] < bits["xz -9e, alone"]
    lines = table({"compressive": [found]}, bits, "title").splitlines()
    assert lines[4].startswith(f"| compressive | {found['bits_per_byte']:.4f} |")
    assert len(lines) == 9
