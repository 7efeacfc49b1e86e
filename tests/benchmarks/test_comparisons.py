"""Comparisons do equal work: language models and compressors on the same bytes, RLlib and this program."""

import bz2
from pathlib import Path

import pytest

from agent.core import LSTMConfig
from benchmarks import rllib
from benchmarks.text import TABLE_5, Options, compressors, variants
from text.corpora import load


def test_variants_are_the_rows_of_the_table_and_see_the_same_tokens():
    assert list(variants(Options())) == ["compressive", "transformer-xl"]
    found = variants(Options(compare="compressions", steps=40))
    assert list(found) == [*(", ".join(row) for row in TABLE_5), "transformer-xl"]
    for name, config in found.items():
        learner = config.learner
        assert learner.batch_size * learner.sequence_length == 16 * 64, name
        assert learner.warmup_steps + learner.decay_steps == learner.steps == 40


def test_compressors_count_the_bits_of_the_held_out_text(tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"line {index}\n" for index in range(3000)))
    held = b"".join(document.read() for document in load("folder", corpus)["test"])
    bits = compressors(load("folder", corpus))
    assert bits["bz2 -9, alone"] == 8 * len(bz2.compress(held, 9)) / len(held)
    assert bits["xz -9e, after the training text"] < bits["xz -9e, alone"]


def test_our_batches_have_as_many_steps_as_those_of_rllib():
    options = rllib.Options(Path("python"))
    for envs in (4, 8, 16):
        config = rllib.our_config(options, envs)
        assert config.unrolls_per_update * config.actors.envs_per_actor * config.actors.unroll_length == 1600
        assert (config.agent.core, config.actors.num_actors) == (LSTMConfig(256), 2)
    assert rllib.PEER.is_file()
    with pytest.raises(ValueError, match=r"^batch: expected a multiple of 3 environments x 100 steps, got 1600$"):
        rllib.our_config(options, 3)
