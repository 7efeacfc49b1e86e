"""Names of the rooms level in gymnasium, with which other programs use it and nothing else of this project.

    import envs, gymnasium
    env = gymnasium.make("compressive/Rooms-v0")

This imports neither the level nor numba.
"""

from collections.abc import Mapping

import gymnasium

ROOMS = (
    "full",
    "full-half",
    "transfer",
    "transfer-choose",
    "unseen",
    "full-recall-112",
    "full-recall-192",
    "full-recall-292",
    "full-recall-532",
    "small",
    "small-recall",
    "small-recall-long",
    "small-recall-18",
    "small-recall-34",
    "small-recall-66",
    "small-recall-130",
)
"""The variants of `envs.rooms.VARIANTS`."""


def rooms_name(variant: str) -> str:
    """The name of a variant: "small-recall" is "compressive/Rooms-SmallRecall-v0"."""
    words = variant.title().replace("-", "")
    return f"compressive/Rooms-{words}-v0"


def gymnasium_name(kind: str, name: str, fields: Mapping[str, str]) -> str | None:
    """The name by which gymnasium makes the environment of a spec "kind:name,field=value"; None if it does not."""
    if fields:
        return None
    if kind == "rooms":
        name = rooms_name(name)
    is_registered = kind in ("rooms", "gym") and name in gymnasium.registry
    return name if is_registered else None


def register() -> None:
    """Registers all variants, and the level itself also as "compressive/Rooms-v0"."""
    names = {"compressive/Rooms-v0": "full"}
    for variant in ROOMS:
        names[rooms_name(variant)] = variant
    for name, variant in names.items():
        gymnasium.register(
            name,
            entry_point="envs.rooms:RoomsEnv",
            vector_entry_point="envs.rooms:RoomsVectorEnv",
            kwargs={"config": variant},
        )
