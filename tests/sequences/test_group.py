"""Several learners of a sequence model: each resumes with its own rows, and a group loses learners.

`test_learner.py` has several learners from their start, `commands/test_text.py` a run on Ray that is resumed.
"""

import dataclasses

import numpy as np
import pytest
import torch

from agent.core import LSTMConfig, index_state, leaves, make_core
from learner.communicator import Communicator
from learner.group import LearnerGroup
from sequences.config import SequenceLearnerConfig
from sequences.learner import SequenceLearner
from sequences.model import SequenceModel
from sequences.streams import Streams
from tests.learner.places import Place
from tests.learner.test_group import together
from tests.sequences.test_learner import CONFIG, STARTS, TOKENS, make_model


def test_learners_resume_with_the_memory_of_their_own_rows() -> None:
    alone = SequenceLearner(make_model(dtype=torch.float64), Streams(TOKENS, 4, 8, STARTS), CONFIG)
    for _ in range(3):
        alone.update()
    saved = alone.state_dict()
    models = [make_model(dtype=torch.float64) for _ in range(2)]

    def resume(comm: Communicator, rank: int) -> tuple[list[torch.Tensor], dict[str, float], dict]:
        """Memory of one of two learners when it resumes; metrics and state of its next update."""
        learner = SequenceLearner(models[rank], Streams(TOKENS, 4, 8, STARTS, (rank, 2)), CONFIG, comm)
        learner.load_state_dict(saved)
        memory = list(leaves(learner.state))
        metrics = learner.update()
        return memory, metrics, learner.state_dict()

    resumed = together(resume)
    for rank, (memory, _, _) in enumerate(resumed):
        rows = slice(2 * rank, 2 * rank + 2)
        own = list(leaves(index_state(saved["memory"], rows)))
        assert len(memory) == len(own)
        assert all(map(torch.equal, memory, own))

    # The two learn what one learner of all rows does.
    expected = alone.update()
    for _, metrics, state in resumed:
        assert metrics == pytest.approx(expected, abs=1e-9)
        torch.testing.assert_close([*leaves(state["memory"])], [*leaves(alone.state)], rtol=0, atol=1e-9)


def test_lost_learners_of_a_sequence_model_leave_the_last_saved_state(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters and weights fit each other, so that a rescue after the loss is a checkpoint that can be resumed."""
    monkeypatch.setattr("agent.failures.MAX_FAILURES", 0)
    config = SequenceLearnerConfig(batch_size=2, sequence_length=4, steps=9, warmup_steps=0, late_start=None)

    def replica(comm: Communicator, device: str) -> SequenceLearner:
        torch.manual_seed(0)
        model = SequenceModel(make_core(LSTMConfig(8)), 5, cutoffs=())
        tokens = np.arange(40, dtype=np.uint8) % 5
        source = Streams(tokens, rows=2, steps=4, shard=(comm.rank, comm.size))
        return SequenceLearner(model, source, dataclasses.replace(config, device=device), comm)

    follower = replica(Communicator(), "cpu")
    with LearnerGroup(follower, replica, 2, "cpu") as group:
        group.update()
        saved = group.state_dict()
        group.update()
        assert follower.step == 2
        place.kill(group, 0)
        with pytest.raises(RuntimeError, match="learners were lost 1 times in a row"):
            group.state_dict()
    assert follower.counters == {"step": 1, "updates": 1, "tokens": 8}
    assert all(weight.equal(saved["weights"][name]) for name, weight in follower.weights().items())
