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
    made = {"rooms": rooms_name(name), "gym": name}.get(kind)
    return None if fields or made not in gymnasium.registry else made


def register() -> None:
    """Registers all variants, and the level itself also as "compressive/Rooms-v0"."""
    names = {"compressive/Rooms-v0": "full"} | {rooms_name(variant): variant for variant in ROOMS}
    for name, variant in names.items():
        gymnasium.register(
            name,
            entry_point="envs.rooms:RoomsEnv",
            vector_entry_point="envs.rooms:RoomsVectorEnv",
            kwargs={"config": variant},
        )
