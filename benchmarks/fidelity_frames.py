"""How far views of the re-created level differ from pictures of the real one, in values of 0..255.

A folder holds a PNG for every script of the traces, named as the script with "-" for other characters than letters and
digits: every fourth frame at 72 x 96, eight a row. Views are drawn from the same pose; the objects, which traces do not
name, are those that differ least. A region is what our own view shows at a pixel. Pictures of a single color are left
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

EVERY = 4  # frames between pictures
ACROSS = 8  # pictures in a row
HEIGHT = 72
WIDTH = 96
ORIGIN = 24.125
"""Height of the player's origin above his feet in Lab, and of a standing player above the floor."""
REGIONS = ("sky", "wall", "floor", "pad", "object", "hud")


def views(env: RoomsVectorEnv, state: dict[str, NDArray], items: NDArray, side: NDArray) -> NDArray[np.float64]:
    """Our views [N, H, W, 3] with objects items [N, 2] (left, right; the first also the example) and its side [N]."""
    objects = {"match": items[:, 0], "other": items[:, 1], "example_side": side}
    return env.set_state(state | objects).astype(float)


def regions(env: RoomsVectorEnv, draw: Any) -> dict[str, NDArray[np.bool_]]:
    """Masks [N, H, W] of what `draw()` shows: the pixels that change if that part alone is painted otherwise."""
    scene = env.scene
    plain = scene._replace(hud=False)

    def changed(first: Any, second: Any) -> NDArray[np.bool_]:
        env.scene = first
        before = draw()
        env.scene = second
        after = draw()
        return (before != after).any(3)

    masks = {"hud": changed(scene, plain)}
    for name, field in (("sky", "sky"), ("wall", "wall"), ("floor", "floors")):
        black = np.zeros_like(getattr(scene, field))
        in_black = plain._replace(**{field: black})
        in_white = plain._replace(**{field: black + 255})
        masks[name] = changed(in_black, in_white)
    masks["pad"] = changed(plain, plain._replace(pads=scene.pads * (1, 1, 0, 1, 1)))
    masks["object"] = changed(plain._replace(unit=1e-3), plain)
    env.scene = scene

    # A pixel belongs to one region: the display is before objects, these before pads, and these before the rest.
    masks["object"] &= ~masks["hud"]
    masks["pad"] &= ~(masks["hud"] | masks["object"])
    for name in ("sky", "wall", "floor"):
        masks[name] &= ~(masks["hud"] | masks["pad"] | masks["object"])
    return masks


def compared(rows: list[dict[str, Any]], sheet: NDArray[np.uint8]) -> tuple[NDArray, NDArray, dict[str, NDArray]]:
    """Pictures and our views [N, 72, 96, 3] of one script and the masks of regions."""
    # Of each frame: the number of the stay in a room, and when the objects of the level appeared.
    stays = np.zeros(len(rows), np.int64)
    starts = np.zeros(len(rows), np.int64)
    room = ROOM_2
    stay = -1
    begun = 0
    for index, row in enumerate(rows):
        before = room
        room = ROOM_1 if float(row["x"]) < 192 else ROOM_2
        if room != before:
            stay += 1
            if room == ROOM_1:
                begun = int(row["frame"])
        stays[index] = stay
        starts[index] = begun

    # The pictures, without those of a single color, and what belongs to them.
    cut = []
    for number in range(len(rows[::EVERY])):
        top = HEIGHT * (number // ACROSS)
        left = WIDTH * (number % ACROSS)
        cut.append(sheet[top : top + HEIGHT, left : left + WIDTH])
    pictures = np.stack(cut).astype(float)
    kept = np.flatnonzero(pictures.std((1, 2)).max(1) > 0)
    pictures = pictures[kept]
    stays = stays[::EVERY][kept]
    starts = starts[::EVERY][kept]
    rows = [rows[::EVERY][index] for index in kept]

    env = RoomsVectorEnv(len(rows), RoomsConfig())
    env.reset(seed=0)
    state = env.get_state()
    for name in ("x", "y", "yaw"):
        state[name] = np.array([float(row[name]) for row in rows])
    state["z"] = np.array([float(row["z"]) - ORIGIN for row in rows])
    state["room"] = np.where(state["x"] < 192, ROOM_1, ROOM_2)
    state["frame"] = np.array([int(row["frame"]) for row in rows])
    state["shown"] = starts
    state["match_side"][:] = 0
    state["taken"][:] = -1

    # Fits the example and its side in the first room; the left and then the right object in the second.
    items = np.zeros((len(rows), 2), np.int64)
    side = np.zeros(len(rows), np.int64)
    best = np.full(len(rows), np.inf)
    for place in (0, 1):
        for item, at in itertools.product(range(env.config.num_objects), (0, 1)):
            tried = items.copy()
            tried[:, place] = item
            turned = side.copy()
            if place == 0:
                turned[:] = at
            errors = np.abs(views(env, state, tried, turned) - pictures).mean((1, 2, 3))
            for number in np.unique(stays):
                mask = stays == number
                if errors[mask].mean() < best[mask].mean():
                    best[mask] = errors[mask]
                    items[mask] = tried[mask]
                    side[mask] = turned[mask]

    def fitted() -> NDArray[np.float64]:
        return views(env, state, items, side)

    return pictures, fitted(), regions(env, fitted)


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
    for script, rows in traces.items():
        name = re.sub("[^A-Za-z0-9]+", "-", script).strip("-")
        path = folder / f"{name}.png"
        if not path.exists():
            continue
        sheet = np.array(Image.open(path).convert("RGB"))
        pictures, ours, masks = compared(rows, sheet)
        gaps = np.abs(ours - pictures).mean(3)
        found[name] = {}
        for region, mask in masks.items():
            found[name][region] = [gaps[mask].sum(), mask.sum()]
        found[name]["all"] = [gaps.sum(), gaps.size]
        if out:
            out.mkdir(parents=True, exist_ok=True)
            pairs = np.concatenate([pictures, ours], axis=1)  # ours below theirs
            beside = pairs.transpose(1, 0, 2, 3).reshape(2 * HEIGHT, -1, 3)
            Image.fromarray(beside.astype(np.uint8)).save(out / f"{name}.png")
    if not found:
        raise ValueError(f"--frames {folder}: expected a picture for a script of the traces, got none")

    over_all = {}
    for part in (*REGIONS, "all"):
        over_all[part] = np.sum([parts[part] for parts in found.values()], 0).tolist()
    found["all"] = over_all

    differences: dict[str, dict[str, float]] = {}
    for name, parts in found.items():
        differences[name] = {}
        for part, (gap, count) in parts.items():
            differences[name][part] = round(gap / max(count, 1), 1)

    shares = {}
    _, count_of_all = over_all["all"]
    for part in REGIONS:
        _, count = over_all[part]
        shares[part] = round(count / count_of_all, 3)
    return {"difference": differences, "pixels": shares}
