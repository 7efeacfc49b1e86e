"""The content of a page, read as its own script reads it."""

import base64
import io
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def embedded(page: Path) -> dict[str, Any]:
    """The data in a page, which must load nothing from elsewhere and close all elements."""
    text = page.read_text()
    Elements(text)
    outside = re.findall(r"https?://[^\"' )]*|(?:src=|<link[^>]*href=)\"(?!data:)[^\"]*", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}, "a name, not an address"
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


class Elements(HTMLParser):
    """Fails if an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.open += [] if tag in ("meta", "br", "link", "input") else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)


def shown_frames(data: dict[str, Any], episode: dict[str, Any]) -> np.ndarray:
    sheet, found = data["sheet"], []
    for source in episode["sheets"]:
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))
        for top in range(0, picture.shape[0], sheet["height"]):
            row = picture[top : top + sheet["height"]]
            found += [row[:, left : left + sheet["width"]] for left in range(0, picture.shape[1], sheet["width"])]
    return np.stack(found)[: len(episode["values"])]
