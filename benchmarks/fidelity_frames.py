"""How far views of the re-created level differ from pictures of the real one, in values of 0..255.

A folder holds a PNG for every script of the traces, named as the script with "-" for other characters than letters and
digits: every fourth frame at 72 x 96, eight a row. Views are drawn from the same pose; the objects, which traces do not
name, are those that differ least. A region is what our own view shows at a pixel. Pictures of a single colour are left
out.
"""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.level import ROOM_1, ROOM_2

EVERY, ACROSS = 4, 8  # frames between pictures, pictures in a row
#: Height of the player's origin above his feet in Lab, and of a standing player above the floor.
ORIGIN = 24.125
REGIONS = ("sky", "wall", "floor", "pad", "object", "hud")


def views(env: RoomsVectorEnv, state: dict[str, NDArray], items: NDArray, side: NDArray) -> NDArray[np.float64]:
    """Our views [N, H, W, 3] with objects items [N, 2] (left, right; the first also the example) and its side [N]."""
    objects = {"match": items[:, 0], "other": items[:, 1], "example_side": side}
    return env.set_state(state | objects).astype(float)


def regions(env: RoomsVectorEnv, draw: Any) -> dict[str, NDArray[np.bool_]]:
    """Masks [N, H, W] of what `draw()` shows: the pixels that change if that part alone is painted otherwise."""
    scene, masks = env.scene, {}
    plain = scene._replace(hud=False)

    def changed(first: Any, second: Any) -> NDArray[np.bool_]:
        pictures = []
        for env.scene in (first, second):
            pictures.append(draw())
        return (pictures[0] != pictures[1]).any(3)

    masks["hud"] = changed(scene, plain)
    for name, field in (("sky", "sky"), ("wall", "wall"), ("floor", "floors")):
        black = np.zeros_like(getattr(scene, field))
        masks[name] = changed(plain._replace(**{field: black}), plain._replace(**{field: black + 255}))
    masks["pad"] = changed(plain, plain._replace(pads=scene.pads * (1, 1, 0, 1, 1)))
    masks["object"] = changed(plain._replace(unit=1e-3), plain)
    env.scene = scene
    masks["object"] &= ~masks["hud"]
    masks["pad"] &= ~(masks["hud"] | masks["object"])
    for name in ("sky", "wall", "floor"):
        masks[name] &= ~(masks["hud"] | masks["pad"] | masks["object"])
    return masks


def compared(rows: list[dict[str, Any]], sheet: NDArray[np.uint8]) -> tuple[NDArray, NDArray, dict[str, NDArray]]:
    """Pictures and our views [N, 72, 96, 3] of one script and the masks of regions."""
    visits: list[int] = []  # number of the stay in a room
    starts, room, begun = [], ROOM_2, 0  # when its objects appeared
    for row in rows:
        before, room = room, ROOM_1 if float(row["x"]) < 192 else ROOM_2
        if room != before and room == ROOM_1:
            begun = int(row["frame"])
        visits.append((visits[-1] if visits else -1) + (room != before))
        starts.append(begun)
    places = [divmod(k, ACROSS) for k in range(len(rows[::EVERY]))]
    pictures = np.stack([sheet[72 * a : 72 * a + 72, 96 * b : 96 * b + 96] for a, b in places]).astype(float)
    kept = np.flatnonzero(pictures.std((1, 2)).max(1) > 0)
    pictures, visit, rows = pictures[kept], np.array(visits[::EVERY])[kept], [rows[::EVERY][k] for k in kept]
    env = RoomsVectorEnv(len(rows), RoomsConfig())
    env.reset(seed=0)
    state = env.get_state()
    for name in ("x", "y", "yaw"):
        state[name] = np.array([float(row[name]) for row in rows])
    state["z"] = np.array([float(row["z"]) - ORIGIN for row in rows])
    state["room"] = np.where(state["x"] < 192, ROOM_1, ROOM_2)
    state["frame"] = np.array([int(row["frame"]) for row in rows])
    state["shown"] = np.array(starts[::EVERY])[kept]
    state["match_side"][:], state["taken"][:] = 0, -1
    items, side = np.zeros((len(rows), 2), np.int64), np.zeros(len(rows), np.int64)
    best = np.full(len(rows), np.inf)
    # Fits the example and its side in the first room; the left and then the right object in the second.
    for place in (0, 1):
        for item, at in itertools.product(range(env.config.num_objects), (0, 1)):
            tried, turned = items.copy(), side.copy()
            tried[:, place], turned[:] = item, at if place == 0 else side
            errors = np.abs(views(env, state, tried, turned) - pictures).mean((1, 2, 3))
            for number in np.unique(visit):
                mask = visit == number
                if errors[mask].mean() < best[mask].mean():
                    best[mask], items[mask], side[mask] = errors[mask], tried[mask], turned[mask]
    return pictures, views(env, state, items, side), regions(env, lambda: views(env, state, items, side))


def measure(traces: dict[str, list[dict[str, Any]]], folder: Path, out: Path | None) -> dict[str, Any]:
    """Mean absolute difference and share of pixels by region and script, and over all pictures.

    Args:
        traces: the rows of every script.
        folder: of pictures.
        out: folder for pictures of both levels side by side.

    Raises:
        ValueError: if there is no picture of any script.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name, rows in traces.items():
        name = re.sub("[^A-Za-z0-9]+", "-", name).strip("-")
        if not (folder / f"{name}.png").exists():
            continue
        pictures, ours, masks = compared(rows, np.array(Image.open(folder / f"{name}.png").convert("RGB")))
        gaps = np.abs(ours - pictures).mean(3)
        found[name] = {region: [gaps[mask].sum(), mask.sum()] for region, mask in masks.items()}
        found[name]["all"] = [gaps.sum(), gaps.size]
        if out:
            out.mkdir(parents=True, exist_ok=True)
            pairs = np.concatenate([pictures, ours], axis=1).transpose(1, 0, 2, 3).reshape(144, -1, 3)
            Image.fromarray(pairs.astype(np.uint8)).save(out / f"{name}.png")
    if not found:
        raise ValueError(f"--frames {folder}: expected a picture for a script of the traces, got none")
    found["all"] = {part: np.sum([s[part] for s in found.values()], 0).tolist() for part in (*REGIONS, "all")}
    gap = {name: {part: round(a / max(n, 1), 1) for part, (a, n) in parts.items()} for name, parts in found.items()}
    return {
        "difference": gap,
        "pixels": {part: round(found["all"][part][1] / found["all"]["all"][1], 3) for part in REGIONS},
    }
