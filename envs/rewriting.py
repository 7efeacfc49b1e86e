"""Tasks in which what is remembered has to be replaced: vectorized in numpy, like `retention`.

`EndlessTMaze` and `ColorCubes` follow Shchendrigin et al. 2026 (arXiv:2601.15086), `Association` is associative recall
with values that change. Where the paper leaves a rule open, the class says which way was taken.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.batched import Step, draw
from envs.diagnostic import DiagnosticEnv, require_flag, require_least


class EndlessTMaze(DiagnosticEnv):
    """Corridors one after the other: a sign at the start of each says where to turn at its end.

    Actions are left, right, forward. A correct turn is worth 1 / corridors and leads to the next corridor, a wrong one
    ends the episode; after 6 (length + 1) corridors steps it is truncated. With `uniform` every corridor has a length
    drawn from 1..`length`. In the paper a correct turn is worth 1, so that returns are `corridors` times as large,
    there is a fourth action that does nothing, and the place in the corridor is observed: here it is not, unless
    `position` is true, when it is a share of `length`. Observations are [sign left, sign right, at the junction] and
    then the place.
    """

    variables = ("side", "place", "end", "corridor", "time")
    action_names = ("left", "right", "forward")
    side: NDArray[np.int64]
    place: NDArray[np.int64]
    end: NDArray[np.int64]
    corridor: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(
        self, num_envs: int, corridors: int = 10, length: int = 10, uniform: bool = False, position: bool = False
    ) -> None:
        require_least(1, corridors=corridors, length=length)
        require_flag(uniform=uniform, position=position)
        self.corridors = corridors
        self.length = length
        self.uniform = uniform
        self.position = position
        self.element_names = ("sign left", "sign right", "junction")
        if position:
            self.element_names += ("place",)
        super().__init__(num_envs, 3 + position, 3)

    @staticmethod
    def scores(corridors: int = 10, **_: Any) -> dict[str, float]:
        # A guess is right with probability 1/2, and the first wrong one ends the episode. Random actions that turn at
        # all turn left as often as right. The sum of 1/2^turn over the corridors is 1 - 1/2^corridors. That time ends
        # before a turn is left out: with one corridor of one step 0.492 are measured for 0.5.
        guessed = (1.0 - 0.5**corridors) / corridors
        return {"oracle": 1.0, "memoryless": guessed, "random": guessed}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.corridor[rows] = 0
        self.time[rows] = 0
        self._enter(rows)

    def _enter(self, rows: NDArray[np.bool_]) -> None:
        self.side[rows] = draw(self, rows, 2)
        self.end[rows] = self.length
        if self.uniform:
            self.end[rows] = 1 + draw(self, rows, self.length)
        self.place[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        turned = (self.place == self.end) & (actions < 2)
        right = turned & (actions == self.side)
        self.place[:] = np.minimum(self.place + (actions == 2), self.end)
        self.corridor += right
        self.time += 1
        over = (turned & ~right) | (self.corridor == self.corridors)
        self._enter(right & ~over)
        late = ~over & (self.time == 6 * (self.length + 1) * self.corridors)
        return right / self.corridors, over, late

    def observe(self) -> NDArray[np.float32]:
        at_start = self.place == 0
        sign_left = at_start & (self.side == 0)
        sign_right = at_start & (self.side == 1)
        at_junction = self.place == self.end
        seen = [sign_left, sign_right, at_junction]
        if self.position:
            seen.append(self.place / self.length)
        return np.stack(seen, axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.where(self.place == self.end, self.side, 2)


class Association(DiagnosticEnv):
    """Associative recall with overwriting: what is the latest value that was shown with a key?

    Every step shows one of K `keys`, either with a new value of V `values`, which replaces the old one, or, with
    probability 1/2 if the key has one, as a question. An action names a value; it counts in steps with a question,
    1 / steps each. Observations are [key, one-hot K; value, one-hot V, none for a question].

    The task is that of multi-query associative recall (Arora et al. 2023, arXiv:2312.04927) as an environment, in which
    keys come back with other values.
    """

    variables = ("key", "asks", "time")
    key: NDArray[np.int64]
    asks: NDArray[np.int64]
    time: NDArray[np.int64]
    value: NDArray[np.int64]
    """[N, K] the latest value of each key, -1 for none."""

    def __init__(self, num_envs: int, keys: int = 8, values: int = 4, steps: int = 64) -> None:
        require_least(1, keys=keys)
        require_least(2, values=values, steps=steps)
        self.keys = keys
        self.values = values
        self.steps = steps
        self.shapes = {"value": (keys,)}
        super().__init__(num_envs, keys + values, values)

    @staticmethod
    def scores(keys: int = 8, values: int = 4, steps: int = 64, **_: Any) -> dict[str, float]:
        # A key is drawn each step; it is known if it came before. A step is a question with half of that probability.
        # At step t it did not come with a probability of (1 - 1/keys)^t, of which the sum is geometric.
        unknown = keys * (1.0 - (1.0 - 1.0 / keys) ** steps)
        asked = 0.5 * (steps - unknown) / steps
        return {"oracle": asked, "memoryless": asked / values, "random": asked / values}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.value[rows] = -1
        self.time[rows] = 0
        self._show(rows)

    def _show(self, rows: NDArray[np.bool_]) -> None:
        """Draws a key, and a question or a value."""
        index = np.flatnonzero(rows)
        key = draw(self, rows, self.keys)
        asks = (draw(self, rows, 2) == 1) & (self.value[index, key] >= 0)
        value = draw(self, rows, self.values)
        self.key[rows] = key
        self.asks[rows] = asks
        self.value[index, key] = np.where(asks, self.value[index, key], value)

    def _latest(self) -> NDArray[np.int64]:
        return self.value[np.arange(self.num_envs), self.key]

    def act(self, actions: NDArray[np.int64]) -> Step:
        right = (self.asks == 1) & (actions == self._latest())
        self.time += 1
        over = self.time == self.steps
        self._show(~over)
        return right / self.steps, over, np.zeros_like(over)

    def observe(self) -> NDArray[np.float32]:
        rows = np.arange(self.num_envs)
        seen = np.zeros((self.num_envs, self.keys + self.values), np.float32)
        seen[rows, self.key] = 1
        value = np.maximum(self._latest(), 0)
        seen[rows, self.keys + value] = self.asks == 0  # a question shows no value
        return seen

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.maximum(self._latest(), 0)


def nth_free(number: NDArray[np.int64], taken: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cell with this number [rows], from 0, among the free ones: all but those that are `taken` [rows, cubes]."""
    cell = number
    for other in np.sort(taken, axis=1).T:
        # Each taken cell up to there, in order, puts it off by one.
        cell = cell + (other <= cell)
    return cell


class ColorCubes(DiagnosticEnv):
    """Cubes of N colors on a grid: go to the cube of the target's color. Where cubes are is shown only when one was
    put down.

    An episode asks for `targets` targets, one after the other. Actions are right, left, up, down and take. To take the
    target's cube is worth 1 / targets; to take any other, or nothing, ends the episode. A taken cube is put into a cell
    without another cube, perhaps its own, and the next target is another color. In every step without a correct take,
    with probability `teleport`, one cube that is not the target is put down in the same way. All cubes are shown at the
    start of the episode and whenever one was put down, and never else, so that what is remembered has to be corrected.
    With `extreme` all later pictures show which cells have a cube and not their colors: what moved follows from what
    was there before. With `area` all of an episode happens in that many rows and columns of the grid, whose place is
    drawn anew for each: an easier task with the same observation space, to learn before or beside the whole one.

    The paper gives the idea and names (Trivial: `teleport=0`; Medium; Extreme); size of the grid, numbers, probability,
    rewards, and that a wrong cube ends the episode are choices made here. Episodes are truncated after 8 size targets
    steps. Observations are [row and column of the player, one-hot; the target's color; whether cubes are
    shown; the cells of the cubes, one-hot by color, and of any color].
    """

    variables = ("top", "left", "row", "column", "target", "found", "shown", "time")
    action_names = ("right", "left", "up", "down", "take")
    top: NDArray[np.int64]
    left: NDArray[np.int64]
    """The place of the area's first cell in the grid."""
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    """The place of the player in the area."""
    target: NDArray[np.int64]
    found: NDArray[np.int64]
    shown: NDArray[np.int64]
    """1 where all cubes are shown with their colors, 2 where without."""
    time: NDArray[np.int64]
    cell: NDArray[np.int64]
    """[N, colors] of each cube in the area, row * area + column."""

    def __init__(
        self,
        num_envs: int,
        size: int = 5,
        colors: int = 3,
        targets: int = 5,
        teleport: float = 0.1,
        extreme: bool = False,
        area: int | None = None,
    ) -> None:
        if area is None:
            area = size
        require_least(2, size=size, colors=colors, area=area)
        require_least(1, targets=targets)
        if area > size:
            raise ValueError(f"area: expected at most the grid's {size} rows and columns, got {area}")
        if colors >= area * area:
            raise ValueError(f"colors: expected fewer than the {area * area} cells for cubes, got {colors}")
        if type(teleport) not in (int, float) or not 0 <= teleport <= 1:
            raise ValueError(f"teleport: expected a probability in 0..1, got {teleport!r}")
        require_flag(extreme=extreme)
        self.size = size
        self.colors = colors
        self.targets = targets
        self.teleport = float(teleport)
        self.extreme = extreme
        self.area = area
        self.shapes = {"cell": (colors,)}
        self.limit = 8 * size * targets
        self.features = 2 * size + colors + 1 + size * size * (colors + 1)
        super().__init__(num_envs, self.features, 5)

    @staticmethod
    def scores(size: int = 5, targets: int = 5, area: int | None = None, **_: Any) -> dict[str, float]:
        # The cell of the first take of random actions is the target's with a probability of one in all cells. Later
        # takes that are right as well are left out: on the grid of 5 x 5, 0.0079 are measured for 0.008, but on one of
        # 2 x 2, 0.058 for 0.05.
        num_cells = (area or size) ** 2
        return {"oracle": 1.0, "random": 1.0 / (num_cells * targets)}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        places = self.size - self.area + 1
        if places > 1:
            self.top[rows] = draw(self, rows, places)
            self.left[rows] = draw(self, rows, places)
        self.row[rows] = draw(self, rows, self.area)
        self.column[rows] = draw(self, rows, self.area)
        self.found[rows] = 0
        self.time[rows] = 0

        cells = np.zeros((np.count_nonzero(rows), self.colors), np.int64)
        for color in range(self.colors):
            free = draw(self, rows, self.area**2 - color)
            cells[:, color] = nth_free(free, taken=cells[:, :color])
        self.cell[rows] = cells
        self.target[rows] = draw(self, rows, self.colors)
        self.shown[rows] = 1

    def _move(self, rows: NDArray[np.bool_], colors: NDArray[np.int64]) -> None:
        """Puts the cube of the color in `colors` [N] into a cell without another cube, in `rows` [N]."""
        index = np.flatnonzero(rows)
        if not index.size:
            return
        moved = colors[index]
        is_other = np.arange(self.colors) != moved[:, None]
        others = self.cell[index][is_other].reshape(len(index), -1)
        free = draw(self, rows, self.area**2 - others.shape[1])
        self.cell[index, moved] = nth_free(free, taken=others)

    def act(self, actions: NDArray[np.int64]) -> Step:
        rows = np.arange(self.num_envs)
        every = np.ones(self.num_envs, bool)

        self.column += (actions == 0) * (self.column < self.area - 1)
        self.column -= (actions == 1) * (self.column > 0)
        self.row += (actions == 2) * (self.row < self.area - 1)
        self.row -= (actions == 3) * (self.row > 0)
        here = self.row * self.area + self.column
        takes = actions == 4
        right = takes & (self.cell[rows, self.target] == here)
        self.found += right
        self.time += 1
        over = (takes & ~right) | (self.found == self.targets)
        goes_on = right & ~over
        self._move(goes_on, self.target)

        # The next target is any other color.
        step = 1 + draw(self, every, self.colors - 1)
        self.target[:] = np.where(goes_on, (self.target + step) % self.colors, self.target)

        # A cube that is not the target moves.
        chance = draw(self, every, 1_000_000) < round(1_000_000 * self.teleport)
        step = 1 + draw(self, every, self.colors - 1)
        other = (self.target + step) % self.colors
        teleports = chance & ~goes_on & ~over
        self._move(teleports, other)

        how = 2 if self.extreme else 1
        self.shown[:] = np.where(goes_on | teleports, how, 0)
        late = ~over & (self.time == self.limit)
        return right / self.targets, over, late

    def observe(self) -> NDArray[np.float32]:
        rows = np.arange(self.num_envs)
        seen = np.zeros((self.num_envs, self.features), np.float32)
        first_column = self.size
        first_color = first_column + self.size
        flag = first_color + self.colors
        seen[rows, self.top + self.row] = 1
        seen[rows, first_column + self.left + self.column] = 1
        seen[rows, first_color + self.target] = 1
        seen[:, flag] = self.shown > 0

        # The cells of each color, and after these of any color, which are shown in the extreme variant as well.
        cubes = seen[:, flag + 1 :]
        num_cells = self.size * self.size
        any_color = self.colors * num_cells
        is_shown = self.shown > 0
        is_colored = self.shown == 1
        for color in range(self.colors):
            row = self.top + self.cell[:, color] // self.area
            column = self.left + self.cell[:, color] % self.area
            cell = row * self.size + column
            cubes[rows, color * num_cells + cell] = is_colored
            cubes[rows, any_color + cell] = is_shown
        return seen

    def oracle_actions(self) -> NDArray[np.int64]:
        cell = self.cell[np.arange(self.num_envs), self.target]
        up = cell // self.area - self.row
        across = cell % self.area - self.column
        return np.select([across > 0, across < 0, up > 0, up < 0], [0, 1, 2, 3], 4)
