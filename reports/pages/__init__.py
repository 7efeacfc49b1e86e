"""Pages: self-contained HTML files, which can be opened without a network.

The templates of this folder share `base.html`, its style and its charts. The data of a page are built elsewhere:
`reports.report`, `reports.episode` and `reports.comparison_page`.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from storage.files import replacing

TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
POINTS = 400
"""Most points of a curve; each is the mean of neighboring values."""


def write_page(path: Path, template: str, data: dict[str, Any]) -> Path:
    """Writes a page. The file is complete, or as it was before.

    Args:
        path: of the HTML file.
        template: name of a template: "episode", "together", "report", "comparison" or "runs".
        data: variables of the template, which its script reads as DATA as well: "title" and what JSON can hold.

    Raises:
        OSError: if it cannot be written, or would replace what is not a regular file.
    """
    page = render_page(template, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def render_page(template: str, data: dict[str, Any]) -> str:
    """The HTML of a page; see `write_page`. With "live" in the data it asks for itself again after so many seconds."""
    # A "<" in a string could begin a tag; JSON has another form of it.
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = TEMPLATES.get_template(f"{template}.html").render(data, json=encoded)
    return page.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8


def packed(array: np.ndarray) -> str:
    """An array's bytes (little-endian, C order) deflated and in base64, as `unpacked` of `charts.js` reads them."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(little).tobytes(), 6)).decode()


def rounded(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """Numbers with a few significant digits; None where they are not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]


def points(y: np.ndarray, **axes: np.ndarray) -> dict[str, list[float | None]]:
    """A curve [N] as charts read it, {"y": [...], "x": [...]} and alike, with at most `POINTS` points."""
    parts = max(1, min(POINTS, len(y)))

    def thin(values: np.ndarray) -> np.ndarray:
        return np.array([mean(part) for part in np.array_split(values, parts)])

    return {"y": rounded(thin(y)), **{name: rounded(thin(x), 6) for name, x in axes.items()}}


def mean(values: np.ndarray) -> float:
    """Mean of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
