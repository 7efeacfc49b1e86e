"""What compression keeps of what an agent saw: what a linear probe reads from the first layer's compressed slots."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from actors.recording import Recording
from envs.rooms.shapes import SHAPES
from reports.probes import ENDS, FOLDS, explained_cell, read_in_others, right_cell
from reports.tables import enumerated
from reports.views import colored, webp

SHAPE_NAMES = sorted((name.replace("_", " ") for name in SHAPES), key=len, reverse=True)
"""The shapes of `rooms` in words. Longer names first: "pot cone" before "cone"."""
EACH = 6
"""Fewest episodes for each answer that a probe chooses from."""
NAMED_ANSWERS = 4
"""Answers that a title names; more are dots."""
KEPT = "kept"
LOST_IN_PART = "lost in part"
MOSTLY_LOST = "mostly lost"
UNREADABLE = "unreadable"
UNKNOWN = "unknown"
SUMMARIES = {
    KEPT: "Compressed memory keeps {things}.",
    LOST_IN_PART: "Compressed memory keeps most of what a linear probe can read of {things}.",
    MOSTLY_LOST: "Compressed memory loses most of what a linear probe can read of {things}.",
    UNREADABLE: "A linear probe cannot read {things} even before compression.",
    UNKNOWN: "Too few episodes were played to tell whether compressed memory keeps {things}.",
}
"""A sentence of the summary for each outcome, in the order of the sentences."""
NAMES_READ = (
    "is right for {slot} % of compressed slots and {before} % before compression; "
    "always giving the most frequent answer is right for {floor} %"
)
VIEWS_READ = "reads {slot} % of their variance from compressed slots, {before} % before compression"
"""What a linear probe does, as the second half of a sentence."""


class Slots(NamedTuple):
    """The compressed slots of several episodes: K in all, of c steps each.

    features: what probes read from, [K, F] each: the slots, the mean of a slot's inputs, all of its inputs.
    episode: [K] the number of its episode.
    things: [K] what was shown at all of its steps; "" if that is not one thing.
    views: [K, c, height, width, channels] the redrawn views of its steps, 0 to 1; None without such.
    """

    features: tuple[np.ndarray, ...]
    episode: np.ndarray
    things: np.ndarray
    views: np.ndarray | None


class Conclusion(NamedTuple):
    """What follows of a probe: a key of `SUMMARIES`, of what, and a sentence."""

    fate: str
    what: str
    sentence: str


def what_is_kept(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """How well probes name the thing that was shown at a slot's steps, and redraw its views, in other episodes.

    Probes are ridge regressions. For comparison they read the same from the mean of the slot's inputs, which has as
    many features, and from all of its inputs; rows have this order. Redrawn views (`Recording.reconstructions`) are
    linear in these, so that what is missing there is what a probe could not learn from so few slots.

    Returns:
        "names" and "views", each None if nothing can be said, and "says": what follows, in sentences. None if nothing
        can be said of either.
    """
    slots = _slots(recordings)
    if slots is None:
        return None
    conclusions: list[Conclusion] = []
    names = _names(slots)
    if names is not None:
        conclusions += names.pop("conclusions")
    views = _views(slots)
    if views is not None:
        cells = [row[1:] for row in views["rows"]]
        conclusions.append(conclusion("the views", "", cells, 0, VIEWS_READ))
    if not conclusions:
        return None
    order = list(SUMMARIES)
    conclusions.sort(key=lambda each: order.index(each.fate))
    says = [_summary(conclusions), *(each.sentence for each in conclusions)]
    return {"names": names, "views": views, "says": says}


def _slots(recordings: Sequence[Recording]) -> Slots | None:
    """The slots of all recordings; None if fewer than two have some, or a number is not finite."""
    compressed = []
    things = []
    views = []
    for recording in recordings:
        kept = recording.compressed
        if kept is None or not len(kept.slots):
            continue
        if not all(np.isfinite(part).all() for part in kept):
            return None
        compressed.append(kept)
        things.append(_things(recording, kept.steps))
        if recording.reconstructions is not None:
            views.append(recording.reconstructions[kept.steps] / 255.0)
    if len(compressed) < 2:
        return None

    slots = np.concatenate([kept.slots for kept in compressed])
    inputs = np.concatenate([kept.inputs for kept in compressed])
    counts = [len(kept.slots) for kept in compressed]
    return Slots(
        features=(slots, inputs.mean(axis=1), inputs.reshape(len(inputs), -1)),
        episode=np.repeat(np.arange(len(compressed)), counts),
        things=np.concatenate(things),
        views=np.concatenate(views) if views else None,
    )


def _summary(conclusions: Sequence[Conclusion]) -> str:
    """Conclusions on all things: a sentence for each fate."""
    sentences = []
    for fate, sentence in SUMMARIES.items():
        things = [each.what for each in conclusions if each.fate == fate]
        if things:
            sentences.append(sentence.format(things=enumerated(things)))
    return " ".join(sentences)


def _things(recording: Recording, slots: np.ndarray) -> np.ndarray:
    """[K] the only thing that is shown at all steps [K, c] of a slot; "" if there is none.

    The situation says after a comma where it is, such as "green cone, left" or ("green cone, left", x, y). A thing with
    a place is shown where that is within the field of view, if the floor plan has one ("view", in degrees).
    """
    num_steps = max(len(recording.actions), slots.max() + 1)
    names = np.full(num_steps, "", object)
    for step, situation in enumerate(recording.situations or ()):
        shown = []
        for known in situation.values():
            words: object = known
            place: list[float] = []
            if isinstance(known, tuple):
                words, *place = known
            name, comma, _ = str(words).partition(", ")
            if comma and in_view(recording, step, *place):
                shown.append(name)
        if len(shown) == 1:
            names[step] = shown[0]
    of_slots = names.astype(str)[slots]
    is_one = (of_slots == of_slots[:, :1]).all(axis=1)
    return np.where(is_one, of_slots[:, 0], "")


def in_view(recording: Recording, step: int, *place: float) -> bool:
    """Whether a place, x and y, is within the field of view at a step; True if nothing says where that is."""
    plan = recording.floor_plan or {}
    if recording.poses is None or not place or "view" not in plan:
        return True
    x, y, yaw = recording.poses[step, :3]
    direction = np.degrees(np.arctan2(place[1] - y, place[0] - x))
    bearing = (direction - yaw + 180) % 360 - 180  # within -180..180
    return bool(abs(bearing) <= plan["view"] / 2)


def _parts(things: np.ndarray) -> dict[str, list[str]]:
    """What probes read of things: their names, and if all are objects of `rooms` their colors and shapes."""
    parts = {"name": list(things)}
    colors = []
    shapes = []
    for thing in things:
        shape = _shape_of(thing)
        if not shape:
            return parts
        colors.append(thing.removesuffix(f" {shape}"))
        shapes.append(shape)
    for part, words in {"color": colors, "shape": shapes}.items():
        # A part that is always the same, or as telling as the name, says nothing more.
        if 1 < len(set(words)) < len(set(things)):
            parts[part] = words
    return parts


def _shape_of(thing: str) -> str:
    """The shape at the end of a name such as "green cone"; empty if the name does not end with one of `rooms`."""
    for shape in SHAPE_NAMES:
        if thing.endswith(f" {shape}"):
            return shape
    return ""


def _names(slots: Slots) -> dict[str, Any] | None:
    """How often the things of slots are named right, whole and in parts.

    "rows": cells, the last of which is the share of the most frequent answer. "slots", "episodes": how many.
    "conclusions": what follows. None if nothing can be said.
    """
    is_known = slots.things != ""
    things = slots.things[is_known]
    episode = slots.episode[is_known]
    features = [each[is_known] for each in slots.features]
    if len(set(things)) < 2:
        return None

    num_episodes = len(set(episode))
    rows: list[list[Any]] = []
    conclusions: list[Conclusion] = []
    for title, words in _parts(things).items():
        answers, answer, counts = np.unique(words, return_inverse=True, return_counts=True)
        named = ", ".join(answers[:NAMED_ANSWERS])
        if len(answers) > NAMED_ANSWERS:
            named += ", ..."
        needed = EACH * len(answers)
        if num_episodes < needed:
            why = f"to tell {len(answers)} answers apart takes {needed} episodes (--episodes), not {num_episodes}"
            sentence = f"Whether compressed memory keeps the {title} ({named}) cannot be told: {why}."
            conclusions.append(Conclusion(UNKNOWN, f"the {title}", sentence))
            continue

        cells = []
        one_hot = np.eye(len(answers))[answer]
        for each in features:
            read = read_in_others(each, one_hot, episode).argmax(axis=1)
            cells.append(right_cell(read == answer, episode))
        floor = 100 * counts.max() / len(answer)
        rows.append([{"text": title, "small": named}, *cells, f"{floor:.0f} %"])
        conclusions.append(conclusion(f"the {title}", f" ({named})", [cells], floor, NAMES_READ))
    return {"rows": rows, "slots": len(things), "episodes": num_episodes, "conclusions": conclusions}


def conclusion(
    what: str, which: str, rows: Sequence[Sequence[Mapping[str, Any]]], floor: float, reads: str
) -> Conclusion:
    """What follows of how well probes read: from slots, in comparison with their inputs and with a guess.

    Args:
        what: what is read, such as "the color".
        which: behind it in a sentence, such as the answers in brackets.
        rows: cells of probes of the slots, of the mean of their inputs, and of all of their inputs.
        floor: percentage that a guess reads.
        reads: says what a probe does, such as `NAMES_READ`.
    """
    # Means over the rows, of each column.
    columns = []
    for number in range(len(rows[0])):
        cells = [row[number] for row in rows]
        columns.append({end: np.mean([cell[end] for cell in cells]) for end in ENDS})
    slot, *inputs = columns
    before = max(inputs, key=lambda each: each["value"])
    readable = max(before["value"] - floor, 1e-9)
    lost = 100 * min(1, (before["value"] - slot["value"]) / readable)
    slot_share = f"{slot['value']:.0f}"
    before_share = f"{before['value']:.0f}"
    evidence = reads.format(slot=slot_share, before=before_share, floor=f"{floor:.0f}")
    thing = f"{what}{which}"
    if before["low"] <= floor:
        fate = UNREADABLE
        said = f"A linear probe cannot read {thing} even before compression, so compression is not what hides it"
        return Conclusion(fate, what, f"{said}; the agent may still use it. The probe {evidence}.")
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
    return Conclusion(fate, what, f"{said}: a linear probe {evidence}.")


def _views(slots: Slots) -> dict[str, Any] | None:
    """How much of the variance of the views of slots' steps is read.

    "rows": cells, for each of the c steps. "picture": a slot of median error, [2, c] views, as it was above and as it
    is read below; if there are some, of slots that are not blank. "thing": what was shown then, "" if that is known of
    no slot. "slots", "rate": K and c. None if views do not vary, or a probe of slots would be fitted to fewer than two
    of them for each feature.
    """
    if slots.views is None:
        return None
    views = slots.views
    num_slots, num_features = slots.features[0].shape
    most_held = max(np.bincount(slots.episode % FOLDS))
    if num_slots - most_held < 2 * num_features:
        return None

    # The mean view of other episodes is what a probe of a constant reads.
    constant = np.zeros((num_slots, 1))
    spread = _squared_error(read_in_others(constant, views, slots.episode), views)
    read = [read_in_others(each, views, slots.episode) for each in slots.features]
    errors = [_squared_error(each, views) for each in read]
    if not spread.any(axis=0).all():
        return None

    rows = []
    for step in range(views.shape[1]):
        title = f"{step + 1}"
        if step == 0:
            title += " (oldest)"
        cells = [explained_cell(error[:, step], spread[:, step], slots.episode) for error in errors]
        rows.append([title, *cells])
    shown = _typical_slot(views, slots.things, errors[0])
    return {
        "rows": rows,
        "slots": num_slots,
        "rate": len(rows),
        "thing": str(slots.things[shown]),
        "picture": _sheet(np.stack([views[shown], read[0][shown]])),
    }


def _squared_error(read: np.ndarray, views: np.ndarray) -> np.ndarray:
    """[K, c], the mean over the pixels of a view."""
    pixels = tuple(range(2, views.ndim))
    return ((read - views) ** 2).mean(axis=pixels)


def _typical_slot(views: np.ndarray, things: np.ndarray, errors: np.ndarray) -> int:
    """The slot of median error [K, c] among those whose thing is known and whose views are not all of one color."""
    known = things != ""
    if not known.any():
        known = ~known
    # Black views, as of a wait in the dark, show nothing.
    is_blank = np.ptp(views, axis=tuple(range(1, views.ndim))) == 0
    if not is_blank[known].all():
        known = known & ~is_blank
    (candidates,) = np.nonzero(known)
    by_error = candidates[np.argsort(errors.sum(axis=1)[candidates])]
    return int(by_error[len(by_error) // 2])


def _sheet(views: np.ndarray) -> str:
    """A picture of views [rows, columns, height, width, channels], 0 to 1, with transparent lines between them."""
    pixels = np.rint(255 * views.clip(0, 1)).astype(np.uint8)
    opaque = np.pad(colored(pixels), [(0, 0)] * 4 + [(0, 1)], constant_values=255)
    lined = np.pad(opaque, [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)])
    # Rows one above the other, then columns side by side.
    columns = np.concatenate(lined, axis=1)
    sheet = np.concatenate(columns, axis=1)
    return webp(sheet, lossless=True, quality=50)
