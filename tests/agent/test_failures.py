"""Why processes were lost, and how often, and how soon, they are started again."""

import pytest

from agent import failures
from agent.failures import Failures, TooManyFailures, reason_of

SHORT = "the node was running low on memory"


def test_losses_in_a_row_are_tolerated_five_times() -> None:
    counted = Failures()
    assert [counted.add("died") for _ in range(5)] == [0.0] * 5
    with pytest.raises(TooManyFailures, match="lost 6 times in a row"):
        counted.add("died")


def test_work_in_between_forgets_them() -> None:
    counted = Failures()
    for _ in range(20):
        counted.add("died")
        counted.clear()


def test_for_lack_of_memory_pauses_grow_and_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(failures.time, "monotonic", lambda: now)
    counted = Failures()
    assert [counted.add(SHORT) for _ in range(8)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    now += failures.MEMORY_SECONDS - 1
    assert counted.add(SHORT) == 30.0
    now += 1
    with pytest.raises(TooManyFailures, match="lost 10 times"):
        counted.add(SHORT)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "The actor died.\nWorker exit detail: Killed by the OOM killer. Some common causes are: ...",
            "Killed by the OOM killer",
        ),
        ("The actor died.\nWorker exit detail: Killed by the OOM killer.", "Killed by the OOM killer"),
        ("\nThe object is lost.\nIts owner has died.", "The object is lost."),
    ],
)
def test_the_reason_of_a_loss_is_one_line(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason
