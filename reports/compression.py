"""What compression keeps of what an agent saw: what a linear probe reads from the first layer's compressed slots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actors.intervals import Sample, bootstrap_interval, share_interval
from actors.recording import Recording
from envs.rooms.shapes import SHAPES
from reports.views import coloured, webp

RIDGE = 0.01
"""Penalty of a probe, over the variance of a feature."""
FOLDS = 8
"""Probes are tested on every FOLDS-th episode, and fitted to the others."""
EACH = 6
"""Fewest episodes for each answer that a probe chooses from."""
ENDS = "value", "low", "high"
KEPT, LOST_IN_PART, MOSTLY_LOST, UNREADABLE, UNKNOWN = "kept", "lost in part", "mostly lost", "unreadable", "unknown"
SUMMARIES = {
    KEPT: "Compressed memory keeps {things}.",
    LOST_IN_PART: "Compressed memory keeps most of what a linear probe can read of {things}.",
    MOSTLY_LOST: "Compressed memory loses most of what a linear probe can read of {things}.",
    UNREADABLE: "A linear probe cannot read {things} even before compression.",
    UNKNOWN: "Too few episodes were played to tell whether compressed memory keeps {things}.",
}
"""A sentence of the summary for each outcome, in the order of the sentences."""
NAMES_READ = "is right for {slot} % of compressed slots and {before} % before compression"
NAMES_READ += "; always giving the most frequent answer is right for {floor} %"
VIEWS_READ = "reads {slot} % of their variance from compressed slots, {before} % before compression"
"""What a linear probe does, as the second half of a sentence."""
Features = Sequence[np.ndarray]


def what_is_kept(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """How well probes name the thing that was shown at a slot's steps, and redraw its views, in other episodes.

    Probes are ridge regressions. For comparison they read the same from the mean of the slot's inputs, which has as
    many features, and from all of its inputs; rows have this order. Redrawn views (`Recording.reconstructions`) are
    linear in these, so that what is missing there is what a probe could not learn from so few slots.

    Returns:
        "names" and "views", each None if nothing can be said, and "says": what follows, in sentences. None if nothing
        can be said of either.
    """
    found = [(each, each.compressed) for each in recordings if each.compressed and len(each.compressed.slots)]
    if len(found) < 2 or not all(np.isfinite(part).all() for _, kept in found for part in kept):
        return None
    slots, _, inputs = map(np.concatenate, zip(*(kept for _, kept in found)))
    features = slots, inputs.mean(axis=1), inputs.reshape(len(inputs), -1)
    episode = np.repeat(np.arange(len(found)), [len(kept.slots) for _, kept in found])
    things = np.concatenate([_things(each, kept.steps) for each, kept in found])
    drawn = [each.reconstructions[kept.steps] / 255.0 for each, kept in found if each.reconstructions is not None]
    views = _views(features, np.concatenate(drawn), things, episode) if drawn else None
    names = _names([x[things != ""] for x in features], things[things != ""], episode[things != ""])
    says = [*(names or {}).get("says", ())]
    if views:
        says.append(conclusion("the views", "", [row[1:] for row in views["rows"]], 0, VIEWS_READ))
    order = list(SUMMARIES)
    says.sort(key=lambda said: order.index(said[0]))
    return {"names": names, "views": views, "says": [_summary(says), *(text for *_, text in says)]} if says else None


def _summary(says: Sequence[tuple[str, str, str]]) -> str:
    """Conclusions on all things: a sentence for each fate."""
    sentences = []
    for fate, sentence in SUMMARIES.items():
        things = [what for other, what, _ in says if other == fate]
        if things:
            sentences.append(sentence.format(things=_enumerated(things)))
    return " ".join(sentences)


def _enumerated(things: Sequence[str]) -> str:
    """The colour, the shape and the views."""
    *first, last = things
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


def _things(recording: Recording, slots: np.ndarray) -> np.ndarray:
    """[K] the only thing that is shown at all steps [K, c] of a slot; "" if there is none.

    The situation says after a comma where it is, such as "green cone, left" or ("green cone, left", x, y). A thing with
    a place is shown where that is within the field of view, if the floor plan has one ("view", in degrees).
    """
    names = np.full(max(len(recording.actions), slots.max() + 1), "", object)
    for step, situation in enumerate(recording.situations or ()):
        known = [of if isinstance(of, tuple) else (of,) for of in situation.values()]
        words = [of[0].split(", ")[0] for of in known if ", " in str(of[0]) and in_view(recording, step, *of[1:])]
        names[step] = words[0] if len(words) == 1 else ""
    shown = names.astype(str)[slots]
    return np.where((shown == shown[:, :1]).all(axis=1), shown[:, 0], "")


def in_view(recording: Recording, step: int, *place: float) -> bool:
    """Whether a place, x and y, is within the field of view at a step; True if nothing says where that is."""
    if recording.poses is None or not place or "view" not in (recording.floor_plan or {}):
        return True
    (x, y, yaw), plan = recording.poses[step, :3], recording.floor_plan or {}
    bearing = np.degrees(np.arctan2(place[1] - y, place[0] - x)) - yaw
    return bool(abs((bearing + 180) % 360 - 180) <= plan["view"] / 2)


def _parts(things: np.ndarray) -> dict[str, list[str]]:
    """What probes read of things: their names, and if all are objects of `rooms` their colours and shapes."""
    shapes = sorted((f" {name.replace('_', ' ')}" for name in SHAPES), key=len, reverse=True)  # "pot cone", then "cone"
    ends = [next(filter(thing.endswith, shapes), "") for thing in things]
    colours = [thing.removesuffix(end) for thing, end in zip(things, ends)]
    known = {"colour": colours, "shape": [end[1:] for end in ends]} if all(ends) else {}
    return {"name": list(things)} | {part: of for part, of in known.items() if 1 < len(set(of)) < len(set(things))}


def _names(features: Features, things: np.ndarray, episode: np.ndarray) -> dict[str, Any] | None:
    """How often things [K] are named right, whole and in parts.

    "rows": cells, the last of which is the share of the most frequent answer. "slots", "episodes": how many. "says":
    what follows.
    """
    number, rows, says = len(set(episode)), list[list[Any]](), list[tuple[str, str, str]]()
    for title, words in _parts(things).items() if len(set(things)) > 1 else ():
        answers, right, counts = np.unique(words, return_inverse=True, return_counts=True)
        which = ", ".join(answers[:4]) + (", ..." if len(answers) > 4 else "")
        if number < EACH * len(answers):
            needed = f"to tell {len(answers)} answers apart takes {EACH * len(answers)} episodes (--episodes)"
            text = f"Whether compressed memory keeps the {title} ({which}) cannot be told: {needed}, not {number}."
            says.append((UNKNOWN, f"the {title}", text))
            continue
        read = [read_in_others(x, np.eye(len(answers))[right], episode).argmax(axis=1) == right for x in features]
        cells = [right_cell(each, episode) for each in read]
        floor = 100 * counts.max() / len(right)
        rows.append([{"text": title, "small": which}, *cells, f"{floor:.0f} %"])
        says.append(conclusion(f"the {title}", f" ({which})", [cells], floor, NAMES_READ))
    return {"rows": rows, "slots": len(things), "episodes": number, "says": says} if says else None


def conclusion(
    what: str, which: str, rows: Sequence[Sequence[Mapping[str, Any]]], floor: float, reads: str
) -> tuple[str, str, str]:
    """What follows of rows of cells: of slots, against the better ones of those that read inputs, and a guess.

    `reads` says what a probe does, such as `NAMES_READ`. Returns a key of `SUMMARIES`, the thing, and a sentence.
    """
    slot, *inputs = ({end: np.mean([cell[end] for cell in of]) for end in ENDS} for of in zip(*rows))
    before = max(inputs, key=lambda each: each["value"])
    lost = 100 * min(1, (before["value"] - slot["value"]) / max(before["value"] - floor, 1e-9))
    slot_share = f"{slot['value']:.0f}"
    before_share = f"{before['value']:.0f}"
    evidence = reads.format(slot=slot_share, before=before_share, floor=f"{floor:.0f}")
    thing = f"{what}{which}"
    if before["low"] <= floor:
        fate = UNREADABLE
        said = f"A linear probe cannot read {thing} even before compression, so compression is not what hides it"
        return fate, what, f"{said}; the agent may still use it. The probe {evidence}."
    if slot["high"] < before["low"] and lost >= 1:
        fate = LOST_IN_PART if lost < 50 else MOSTLY_LOST
        said = f"Compressed memory loses {lost:.0f} % of what can be read of {thing}"
    elif slot["low"] > floor:
        fate = KEPT
        loss = "no loss is visible"
        if lost >= 1:
            loss = "a loss is not confirmed, because the intervals overlap"
        said = f"Compressed memory keeps {thing}, and {loss}"
    else:
        fate = UNKNOWN
        said = f"Whether compressed memory keeps {thing} cannot be told, because the intervals are too wide"
    return fate, what, f"{said}: a linear probe {evidence}."


def _views(features: Features, views: np.ndarray, things: np.ndarray, episode: np.ndarray) -> dict[str, Any] | None:
    """How much of the variance of the views of slots' steps [K, c, height, width, channels] is read.

    "rows": cells, for each of the c steps. "picture": a slot of median error, [2, c] views, as it was above and as it
    is read below; if there are some, of slots that are not blank. "thing": what was shown then, "" if that is known of
    no slot. "slots", "rate": K and c. None if views do not vary, or a probe of slots would be fitted to fewer than two
    of them for each feature.
    """
    if len(views) - max(np.bincount(episode % FOLDS)) < 2 * features[0].shape[1]:
        return None
    read = [read_in_others(x, views, episode) for x in (np.zeros((len(views), 1)), *features)]
    spread, *errors = (((each - views) ** 2).mean(axis=tuple(range(2, views.ndim))).T for each in read)
    if not spread.any(axis=1).all():
        return None
    known = np.flatnonzero((things != "") | (things == "").all())
    # Black views, as of a wait in the dark, show nothing.
    is_blank = np.ptp(views, axis=tuple(range(1, views.ndim))) == 0
    if not is_blank[known].all():
        known = known[~is_blank[known]]
    shown = known[np.argsort(errors[0].sum(axis=0)[known])[len(known) // 2]]
    picture = np.rint(255 * np.stack([views[shown], read[1][shown]]).clip(0, 1)).astype(np.uint8)
    opaque = np.pad(coloured(picture), [(0, 0)] * 4 + [(0, 1)], constant_values=255)
    opaque = np.pad(opaque, [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)])  # transparent lines between the views
    sheet = np.concatenate(np.concatenate(opaque, axis=1), axis=1)
    shares = [[explained_cell(error, all_, episode) for error in of] for all_, *of in zip(spread, *errors)]
    rows = [[f"{step} (oldest)" if step == 1 else str(step), *cells] for step, cells in enumerate(shares, 1)]
    numbers = {"slots": len(views), "rate": len(rows), "thing": str(things[shown])}
    return {"rows": rows, **numbers, "picture": webp(sheet, lossless=True, quality=50)}


def right_cell(right: np.ndarray, episode: np.ndarray) -> dict[str, Any]:
    """A cell: the share of right answers [K], with its 95 % interval over episodes."""
    return _cell(*share_interval(_sums(right, episode), _sums(np.ones(len(right)), episode)))


def explained_cell(error: np.ndarray, spread: np.ndarray, episode: np.ndarray) -> dict[str, Any]:
    """A cell: the share of the spread [K] that is no error [K], 0 at least, with its 95 % interval over episodes."""

    def share(sample: Sample) -> Any:
        errors, spreads = np.sum(sample[0], axis=-1)
        missed = np.divide(errors, spreads, out=np.ones(np.shape(spreads)), where=spreads > 0)
        return np.maximum(0.0, 1 - missed)

    sums = np.stack([_sums(error, episode), _sums(spread, episode)])
    low, high = bootstrap_interval(share, [sums])
    return _cell(float(share([sums])), float(low), float(high))


def _sums(values: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Sums over the slots of each episode, [episodes], of values [K]."""
    return np.array([values[episode == one].sum() for one in np.unique(episode)])


def _cell(value: float, low: float, high: float) -> dict[str, Any]:
    """A share with the ends of its interval in %, and in words."""
    percent = {end: 100 * number for end, number in zip(ENDS, (value, low, high))}
    return {"text": f"{percent['value']:.0f} %", "small": f"[{percent['low']:.0f}, {percent['high']:.0f}]", **percent}


def read_in_others(features: np.ndarray, targets: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Targets [K, ...] as ridge regressions read them from features [K, F], each fitted to other episodes."""
    read, y = np.zeros((len(targets), targets[0].size)), targets.reshape(len(targets), -1)
    for fold in np.unique(episode % FOLDS):
        held = episode % FOLDS == fold
        mean, scale, middle = features[~held].mean(axis=0), features[~held].std(axis=0) + 1e-9, y[~held].mean(axis=0)
        x, others = (features[held] - mean) / scale, (features[~held] - mean) / scale
        square = others.T @ others + RIDGE * len(others) * np.eye(len(mean))
        read[held] = x @ np.linalg.solve(square, others.T @ (y[~held] - middle)) + middle
    return read.reshape(targets.shape)
