"""Textures by their definitions: degrees of blur, which of them a view shows, tones and the colors of the display."""

import itertools

import numpy as np
import pytest

from envs.rooms import RoomsConfig, RoomsVectorEnv, hud, textures
from envs.rooms.level import ROOM_1
from envs.rooms.render import CORNER, _blur
from envs.rooms.textures import LEVELS, TEXEL, WALL_TEXEL, blurred

DISTANT = RoomsConfig(image_height=400, image_width=64, hud=False)
"""Tall pixels at many distances."""
BOUNDS = (0.75, 1.5, 3.0, 6.0)
"""Texels of a pixel beyond which a texture is blurred by one more degree."""


def degree_of(texels: float) -> int:
    """The degree of blur of a pixel that covers so many texels."""
    return sum(texels > bound for bound in BOUNDS)


def test_each_degree_of_blur_is_the_mean_of_blocks_twice_as_large() -> None:
    """Also of blocks that the texture ends in: its last texels then stand for what is missing."""
    texture = np.random.default_rng(0).uniform(0, 255, (37, 20, 3))
    found = blurred(texture)
    assert found.shape == (5, 37, 20, 3)
    for degree, block in enumerate((1, 2, 4, 8, 16)):
        for x, y in ((0, 0), (3, 5), (16, 17), (36, 19), (33, 0)):
            rows = np.minimum(block * (x // block) + np.arange(block), 36)
            columns = np.minimum(block * (y // block) + np.arange(block), 19)
            expected = texture[np.ix_(rows, columns)].mean(axis=(0, 1))
            np.testing.assert_array_equal(found[degree, x, y], np.round(expected))


def test_a_pixel_shows_the_texels_that_it_covers() -> None:
    """Up to 3/4 of a texel the finest degree, and each next one from twice as many on."""
    assert len(BOUNDS) == LEVELS - 1
    just_beyond = [bound * 1.001 for bound in BOUNDS]
    for texels in (0.0, 0.1, *BOUNDS, *just_beyond, 50.0):
        assert _blur(texels) == degree_of(texels)


def shown(texture: str) -> tuple[RoomsVectorEnv, np.ndarray]:
    """The view from the start along x, 50 u above the floor, in which degrees of blur are the colors 0 to 200."""
    env = RoomsVectorEnv(1, DISTANT)
    env.reset(seed=0)
    coded = np.zeros_like(getattr(env.scene, texture))
    colors = 50 * np.arange(LEVELS)[:, None, None, None]
    if texture == "wall":
        coded[0] = colors
    else:
        coded[0, ROOM_1] = colors
    env.scene = env.scene._replace(**{texture: coded})
    state = env.get_state()
    state["shown"][:] = -100
    return env, env.set_state(state)[0]


def test_the_floor_is_the_more_blurred_the_further_away_it_is() -> None:
    """A pixel covers 1.5 times as many u as its height does at its distance."""
    env, view = shown("floors")
    focal = env.scene.focal
    eye = 50.0  # u above the floor
    horizon = 200
    rows = np.arange(208, 400)  # below the wall on the left
    depth = eye * focal / (rows + 0.5 - horizon)
    texels = 1.5 * depth / focal / TEXEL
    expected = [50 * degree_of(each) for each in texels]
    seen = view[rows, 5, 0]  # beside the pads
    assert seen.tolist() == expected
    assert set(expected) == {0, 50, 100, 150}


@pytest.mark.parametrize(("x", "degree"), [(-232.0, 4), (-100.0, 4), (30.0, 3), (70.0, 2), (100.0, 1)])
def test_the_wall_is_the_more_blurred_the_further_away_it_is(x: float, degree: int) -> None:
    """Of the wall at x = 128 a pixel covers its distance over the focal length; there is no gloom in its middle."""
    env, _ = shown("wall")
    state = env.get_state() | {"x": np.array([x]), "y": np.array([0.0])}
    texels = (128.0 - x) / env.scene.focal / WALL_TEXEL
    assert degree == degree_of(texels)
    view = env.set_state(state)[0]
    assert CORNER < 128, "the corners are darker"
    assert view[198, 32, 0] == 50 * degree


@pytest.mark.slow
def test_tones_are_gamma_and_brightness_rounded_to_the_nearest() -> None:
    env = RoomsVectorEnv(1, RoomsConfig(image_height=40, image_width=64, looks="train"))
    plain = (1.0, 1.0)
    random = itertools.product((0.8, 0.93, 1.07, 1.25), (1.1, 1.0, 0.9, 0.8))
    for (gamma, top), tones in zip([plain, *random], env.scene.tones, strict=True):
        for value in (0, 1, 17, 100, 128, 254, 255):
            assert tones[value] == round(255 * min(top * (value / 255) ** gamma, 1.0))


def test_the_display_is_blended_and_rounded_downward() -> None:
    image = np.full((1, 2, 3), 100, np.uint8)
    hud._blend(image, 0, 0, 111.0, 89.0, 255.0, 0.5)
    assert image[0, 0].tolist() == [105, 94, 177]
    hud._blend(image, 0, 0, 1.0, 2.0, 3.0, 1.7)
    assert image[0, 0].tolist() == [1, 2, 3], "no further than the color"
    for row, column in ((-1, 0), (1, 0), (0, -1), (0, 2)):
        hud._blend(image, row, column, 0.0, 0.0, 0.0, 1.0)
    assert image[0, 1].tolist() == [100, 100, 100]


def test_the_sky_has_the_colors_of_its_height_rounded_to_the_nearest() -> None:
    """Behind the player, where nothing else is painted."""
    sky = textures.sky(0)
    for row in (3, 20, 41, 63):
        up = (row + 0.5) / 64 * 0.96
        assert sky[row, 20].tolist() == [round(85 + 56 * up), round(163 + 56 * up), 255]
