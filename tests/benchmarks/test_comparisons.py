"""Comparisons do equal work: language models and compressors on the same bytes, RLlib and this program."""

import bz2
from pathlib import Path

import pytest

from agent.core import LSTMConfig
from benchmarks import rllib
from benchmarks.text import TABLE_5, Options, compressors, table, variants
from text.corpora import load


def test_variants_are_the_rows_of_the_table_and_see_the_same_tokens():
    assert list(variants(Options())) == ["compressive", "transformer-xl"]
    words = variants(Options(compare="compressions", steps=40))
    assert list(words) == [*(", ".join(row) for row in TABLE_5), "transformer-xl"]
    for name, options in words.items():
        given = dict(zip(options[::2], options[1::2]))
        rows, steps = given.get("--learner.batch-size", "16"), given.get("--learner.sequence-length", "64")
        assert int(rows) * int(steps) == 16 * 64, name
        assert int(given["--learner.warmup-steps"]) + int(given["--learner.decay-steps"]) == 40


def test_compressors_and_models_share_a_table(tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"line {index}\n" for index in range(3000)))
    held = b"".join(document.read() for document in load("folder", corpus)["test"])
    bits = compressors(load("folder", corpus))
    assert bits["bz2 -9, alone"] == 8 * len(bz2.compress(held, 9)) / len(held)
    assert bits["xz -9e, after the training text"] < bits["xz -9e, alone"]
    runs = [{"bits_per_byte": value, "tokens_per_second": 1000.0} for value in (1.0, 2.0)]
    lines = table({"compressive": runs}, bits).splitlines()
    assert lines[2] == "| compressive | 1.5000 ± 0.7071 | 1.0000, 2.0000 | 1,000 |"
    assert len(lines) == 7


def test_our_batches_have_as_many_steps_as_those_of_rllib():
    options = rllib.Options(Path("python"))
    for envs in (4, 8, 16):
        config = rllib.our_config(options, envs)
        assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
        assert (config.agent.core, config.actors.num_actors) == (LSTMConfig(256), 2)
    assert rllib.PEER.is_file()
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        rllib.our_config(options, 3)
