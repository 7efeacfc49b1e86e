"""Pages: one self-contained HTML file each, which opens from a disk without a network.

A page is a template of this folder with the style, the shared script and its data put in. What a page says is the
business of the commands that write it.
"""

import base64
import html
import json
import re
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from learner.files import replacing


def write_page(path: Path, template: str, title: str, data: dict[str, Any]) -> Path:
    """Writes a page; it is there whole or as it was before.

    Args:
        path: of the HTML file.
        template: name of a template here: "episode" or "report".
        title: of the page, as browsers show it.
        data: what the template's script reads; all that JSON can hold (NaN is not).

    Raises:
        OSError: if it cannot be written, or would replace what is no regular file; nothing is left behind then.
    """
    folder = files(__name__)
    # A "<" in a string could begin a tag; JSON reads it in this form as well.
    parts = {
        "title": html.escape(title),
        "style": (folder / "style.css").read_text(encoding="utf-8"),
        "charts": (folder / "charts.js").read_text(encoding="utf-8"),
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = (folder / f"{template}.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], page)  # at once: what is put in is left alone
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def packed(array: np.ndarray) -> str:
    """An array's bytes (little-endian, C order) deflated and in base64, as `unpacked` of `charts.js` reads them."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(little).tobytes(), 6)).decode()


def rounded(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Numbers with a few significant digits; None where they are not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]
