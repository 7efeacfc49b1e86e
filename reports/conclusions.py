"""What a comparison says, in sentences: which variant is better, how surely, and what would be needed to confirm more.

The tables and charts beside these sentences are built in `reports.comparison_page`, the numbers in
`reports.comparison`.
"""

import math
from collections.abc import Mapping
from typing import Any

from actors.intervals import Sample
from reports.comparison import Comparison, Estimate, FinishedRun, Variant, estimate
from reports.statistics import interquartile_mean, runs_to_confirm
from reports.tables import EQUAL, enumerated, with_brackets, with_interval

INTERVAL = "its 95 % bootstrap interval"
RANGE = "the range of the runs, which are too few for an interval"
"""What the brackets of a score can be."""
FEW = 4
"""Most runs of one task whose range, as the interval of an interquartile mean, holds the truth in less than 90 %."""
FEWEST = 5
"""Runs of each variant below which a difference is weak evidence."""
MOST_RUNS = 1000
"""Numbers of runs above this are not proposed."""
CLOSE = 5
"""Points by which a share of correct choices may miss what reach predicts and still agree with it."""


def answer(comparison: Comparison) -> str:
    """Which variant is better, in one sentence; only differences that are confirmed."""
    names = comparison.names
    best = comparison.best.name
    if len(names) == 1:
        return f"There is only one variant, {best}: nothing is compared."
    if comparison.unfinished:
        return "Not all runs are finished: nothing is confirmed yet."

    better = {}
    for ours in names:
        worse = [theirs for theirs in names if theirs != ours and comparison.confirmed(ours, theirs)]
        if worse:
            better[ours] = worse
    if not better:
        return "No difference is confirmed."

    if best not in better:
        found = [f"{ours} is better than {enumerated(worse)}" for ours, worse in better.items()]
        return f"Which variant is best is not confirmed; it is confirmed that {enumerated(found)}."

    sentence = f"{best} is better than {enumerated(better[best])}"
    not_confirmed = _not_confirmed(comparison)
    if not_confirmed:
        sentence += f"; no difference from {enumerated(not_confirmed)} is confirmed"
    return f"{sentence}."


def evidence(comparison: Comparison) -> str:
    """The best score, and how much it proves or what would be needed to confirm a difference."""
    best = comparison.best
    value, ends = score_texts(comparison, best)
    score = value
    if ends == EQUAL:
        score = f"{value} ({ends})"
    elif ends and spread_of(comparison, best) == RANGE:
        _, low, high = with_interval(*best.score)
        score = f"{value} (its runs: {low} to {high})"
    elif ends:
        score = f"{value} {ends}"
    if len(comparison.names) == 1:
        return _sentences(f"Its interquartile mean is {score}.", _caution(comparison))

    extreme = "lowest" if comparison.scale.lower else "highest"
    lead = f"{best.name} has the {extreme} interquartile mean, {score}."
    return _sentences(lead, _caution(comparison), needed(comparison))


def needed(comparison: Comparison) -> str:
    """What would confirm that the best variant is better than its closest rival: of those that it is not confirmed to
    be better than, the one with the best score. Empty if there is none, that is not known, or a run is not finished."""
    not_confirmed = _not_confirmed(comparison)
    if not not_confirmed or comparison.fewest < 2 or comparison.unfinished:
        return ""
    best = comparison.best.name
    rival = comparison.best_of([variant for variant in comparison.variants if variant.name in not_confirmed]).name

    improvement = comparison.improvements[best, rival].value
    if improvement == 1:
        chance = comparison.chances[best, rival]
        return (
            f"All runs of {best} are better than all of {rival}, but so few runs of variants that are equally good "
            f"would differ as much with a probability of {chance:.2g}: train at least {FEWEST} seeds of each."
        )
    if len(comparison.data) > 1:
        return ""
    runs = runs_to_confirm(improvement)
    if improvement <= 0.5 or runs > MOST_RUNS:
        return f"The runs of {best} and {rival} differ too little to say how many more would confirm a difference."
    count = max(math.ceil(runs), comparison.fewest + 1, FEWEST)
    return (
        f"If a run of {best} is better than one of {rival} in {100 * improvement:.0f} % of cases, as here, about "
        f"{count} runs of each are needed to confirm it."
    )


def _caution(comparison: Comparison) -> str:
    """What so few runs cannot tell; empty if there are enough."""
    where = " in an environment" if len(comparison.data) > 1 else ""
    if comparison.fewest == 1:
        alone = f"A single run of a variant{where} has no interval"
        if len(comparison.names) == 1:
            return f"{alone}."
        return f"{alone}: train at least {FEWEST} seeds of each to confirm a difference."
    if comparison.fewest < FEWEST and worse_than_best(comparison):
        return f"With as few as {comparison.fewest} runs of a variant{where}, that is weak evidence."
    return ""


def _sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _not_confirmed(comparison: Comparison) -> list[str]:
    """The variants that the best one is not confirmed to be better than."""
    better = worse_than_best(comparison)
    return [name for name in comparison.names if name not in (comparison.best.name, *better)]


def spread(comparison: Comparison) -> str:
    """What the brackets of the variants' scores are; empty if there are none."""
    found = {spread_of(comparison, variant) for variant in comparison.variants} - {""}
    if found == {INTERVAL, RANGE}:
        return f"{INTERVAL}, or, of variants with at most {FEW} runs, the range of these"
    return next(iter(found), "")


def spread_of(comparison: Comparison, variant: Variant) -> str:
    """What the brackets of a variant's score are; empty if it has none."""
    fewest = min(len(scores) for scores in comparison.scores(variant.name))
    if fewest < 2:
        return ""
    if fewest <= FEW and len(comparison.data) == 1:
        return RANGE
    return INTERVAL


def next_best(comparison: Comparison) -> dict[str, Any]:
    """The second variant by score, and how much and how surely the best one is better; empty if that is unknown."""
    best = comparison.best
    others = [variant for variant in comparison.variants if variant is not best]
    if not others or comparison.fewest < 2:
        return {}
    other = comparison.best_of(others)
    improvement = comparison.improvements[best.name, other.name]
    probability = f"{100 * improvement.value:.0f} %"

    # If all runs of one are better than all of the other, the interval has no width.
    ends = percent_interval(improvement)
    if ends:
        probability += f" {ends}"

    sign = -1 if comparison.scale.lower else 1

    def difference(ours: Sample, theirs: Sample) -> Any:
        return sign * (interquartile_mean(ours) - interquartile_mean(theirs))

    apart = estimate(difference, comparison.scores(best.name), comparison.scores(other.name))
    return {
        "name": other.name,
        "p": probability,
        "confirmed": comparison.confirmed(best.name, other.name),
        "runs": [len(best.runs), len(other.runs)],
        "chance": f"{comparison.chances[best.name, other.name]:.2g}",
        "apart": " ".join(texts(apart)).rstrip(),
    }


def worse_than_best(comparison: Comparison) -> list[str]:
    """The variants that the best one is confirmed to be better than."""
    best = comparison.best.name
    return [name for name in comparison.names if name != best and comparison.confirmed(best, name)]


def texts(number: Estimate) -> tuple[str, str]:
    """A number and the ends of its interval in brackets, which are empty if there is none, or none with a width."""
    value, ends = with_brackets(*number)
    return value, "" if ends == EQUAL else ends


def score_texts(comparison: Comparison, variant: Variant) -> tuple[str, str]:
    """The score of a variant and its interval over runs.

    A single run has none. The interval over the episodes of its evaluation then says which digits are known. Runs that
    are all equal have none either, which is said in its place.
    """
    value, ends = texts(variant.score)
    if len(variant.runs) > 1 and variant.score.low == variant.score.high:
        return value, EQUAL
    if len(variant.runs) == 1:
        value, _, _ = with_interval(variant.score.value, *variant.runs[0].interval(comparison.scale))
    return value, ends


def run_score_text(comparison: Comparison, run: FinishedRun) -> str:
    """The final score of a run, with the digits that its episodes allow."""
    value, _, _ = with_interval(run.summary[comparison.scale.final], *run.interval(comparison.scale))
    return value


def percent_interval(share: Estimate) -> str:
    """The interval of a share, in percent; empty if there is none, or none with a width."""
    if math.isnan(share.low) or share.low == share.high:
        return ""
    return f"[{100 * share.low:.0f}, {100 * share.high:.0f}]"


def agreement(misses: Mapping[str, float]) -> str:
    """How well reach explains the scores, given by variant how far the measured percentage is below the predicted."""
    if not misses:
        return ""
    below = [f"{name} is {miss:.0f} points below its prediction" for name, miss in misses.items() if miss > CLOSE]
    above = [f"{name} is {-miss:.0f} points above" for name, miss in misses.items() if miss < -CLOSE]
    if not below and not above:
        return f"All are within {CLOSE} points of their predictions: reach explains the difference."
    return f"{enumerated(below + above)}: reach explains a part of the difference, and not all of it."
