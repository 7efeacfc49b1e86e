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

    # Addresses of other hosts, and sources of pictures, scripts and styles that are not in the page itself.
    outside = re.findall(r"https?://[^\"' )]*|(?:src=|<link[^>]*href=)\"(?!data:)[^\"]*", text)
    svg_namespace = "http://www.w3.org/2000/svg"  # a name, which no browser loads
    assert set(outside) <= {svg_namespace}

    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


WITHOUT_CONTENT = ("meta", "br", "link", "input")
"""Elements that have no end tag."""


class Elements(HTMLParser):
    """Fails if an element is not closed, or closed in another order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        if tag not in WITHOUT_CONTENT:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def unpacked(text: str, kind: str) -> np.ndarray:
    """A flat array of a NumPy type, from compressed bytes in base 64."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)


def shown_frames(data: dict[str, Any], episode: dict[str, Any]) -> np.ndarray:
    """The frames of an episode [T, height, width, 3]. A sheet is a picture of many frames in rows."""
    height = data["sheet"]["height"]
    width = data["sheet"]["width"]
    found = []
    for source in episode["sheets"]:
        _, _, encoded = source.partition(",")
        sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
        sheet_height, sheet_width, _ = sheet.shape
        for top in range(0, sheet_height, height):
            for left in range(0, sheet_width, width):
                found.append(sheet[top : top + height, left : left + width])

    # The last sheet is filled up with empty frames.
    steps = len(episode["values"])
    return np.stack(found)[:steps]
