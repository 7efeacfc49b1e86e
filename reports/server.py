"""The pages of runs, served to this machine alone: read only, and made of what the runs have written when asked.

An address is answered if it names a run that `find_runs` finds, or a page or video of it; nothing else is opened. Pages
that runs have brought with them run in a sandbox, without a network.
"""

import contextlib
import math
import os
import re
import shlex
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from reports.comparison import Comparison, FinishedRun, read_run
from reports.comparison_page import page_data as compared
from reports.overview import Entry, Group, ago, describe, find_runs, grouped, learning_curve
from reports.pages import render_page
from reports.report import media, page_data, read_rows
from reports.tables import significant
from sequences.kinds import CONFIGS
from storage.errors import UserError
from storage.files import one_line, open_regular
from storage.run import Run
from training.console import plural, program
from training.plain import read_config
from training.trust import permissions

MIME_TYPES = {".html": "text/html; charset=utf-8", ".mp4": "video/mp4"}
OWN_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "media-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
)
"""The content security policy of pages of ours: what a browser may do for them."""
FOREIGN_POLICY = "; ".join(
    [
        "sandbox allow-scripts",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "media-src data: blob:",
    ]
)
"""The same for files of runs, which others may have made."""
BLOCK = 1 << 20
"""Bytes of a file that are read at a time."""
COLUMNS = [
    {"key": "run", "text": "run"},
    {"key": "state", "text": "state"},
    {"key": "progress", "text": "progress", "descending": True},
    {"key": "", "text": "learning curve"},
    {"key": "score", "text": "score", "descending": True},
    {"key": "measured", "text": "measured"},
    {"key": "", "text": "command"},
]
"""Of the overview. Those with a key can be sorted by it, at first descending or ascending."""
SECONDS = {"overview": 5, "report": 5, "comparison": 20}
"""Time after which a page asks for itself again."""


class Watch(ThreadingHTTPServer):
    """A server on 127.0.0.1 of the runs in a folder; `serve_forever` runs it.

    Port 0 is any that is free; one that is in use raises an OSError. For `allow` see `reports.comparison.read_run`.

    Attributes:
        pages: by address, what the page was made of and the page.
        curves: by the path of a run, what its learning curve was read from and the curve.
        rendering: is held while pages are made, so that browsers that ask at once do not make the same page twice.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int, allow: str | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.allow = allow
        self.rendering = threading.Lock()
        self.pages = dict[str, tuple[Any, str]]()
        self.curves = dict[Path, tuple[Any, list[tuple[float, float]]]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def page(self, address: str, runs: list[Run], make: Callable[[], str]) -> str:
        """A page, made anew if a file of its runs, or what uses them, has changed."""
        state = [(str(run), run.in_use, *map(_changed, _files(run))) for run in runs]
        with self.rendering:
            state_before, page = self.pages.get(address, (None, ""))
            if state_before != state:
                page = make()
                self.pages[address] = state, page
            return page

    def overview(self) -> str:
        """The page of all runs."""
        entries = [describe(name, run) for name, run in find_runs(self.folder).items()]
        groups = [self._group(group, entries) for group in grouped(self.folder, entries)]
        title = self.folder.resolve().name
        data = {"title": title, "columns": COLUMNS, "groups": groups, "live": SECONDS["overview"]}
        return render_page("runs", data)

    def _group(self, group: Group, entries: Sequence[Entry]) -> dict[str, Any]:
        """A group of runs as `pages/runs.html` reads it; `entries` are all runs."""
        curves = [self._curve(entry) for entry in group.entries]
        # Curves are drawn on one scale if their runs are compared.
        ends = None
        scores = [score for curve in curves for _, score in curve]
        if group.data and scores:
            ends = (min(scores), max(scores))
        rows = []
        for entry, variant, curve in zip(group.entries, group.variants, curves):
            rows.append(_row(entry, variant, sparkline(curve, ends)))

        about = plural(len(rows), "run")
        if group.sweep:
            about += " of a comparison"
        if group.folder:
            about += f" in {group.folder}"
        return {
            "key": f"{group.folder} {group.kind} {group.data}",
            "title": group.data or "Other runs",
            "about": about,
            "links": _links_to_comparisons(group, entries),
            "rows": rows,
        }

    def _curve(self, entry: Entry) -> list[tuple[float, float]]:
        """The learning curve of a run, read again only if it has changed."""
        if entry.config is None:
            return []
        state = _changed(entry.run.metrics_file), entry.config
        known = self.curves.get(entry.run.path)
        if known is None or known[0] != state:
            known = state, learning_curve(entry.run, entry.config)
            self.curves[entry.run.path] = known
        return known[1]

    def report(self, name: str, run: Run) -> str:
        """The report of a run, without episodes played for it."""
        data = page_data(run, read_rows(run))
        allowed = permissions(read_config(run, CONFIGS[run.read_kind()[0]]))
        why = f"Made from episodes that are played for it: compressive report {shlex.quote(str(run))}{allowed}"
        media_of = media(run, run.report, embed=False)
        return render_page("report", {**data, "buckets": {"why": why}, "media": media_of, "live": SECONDS["report"]})

    def comparison(self, kind: str, data: str, folder: str | None) -> tuple[list[Run], Callable[[], str]]:
        """The runs of a kind on the same data, of one folder or of all, and what makes the page that compares them."""
        runs = []
        for name, run in find_runs(self.folder).items():
            entry = describe(name, run)
            parent, _, _ = name.rpartition("/")
            is_here = folder is None or parent == folder
            if is_here and (entry.kind, entry.data) == (kind, data):
                runs.append(run)

        def make() -> str:
            found, missing = self._comparable(runs)
            if not found:
                reasons = "; ".join(missing.values())
                raise UserError(f"expected runs to compare, got none: {reasons}")
            command = shlex.join(["compressive", "compare", "--from", *(str(run.path) for run in found)])
            command += permissions(*(run.config for run in found))
            page = compared(self.folder, Comparison(found), missing, command)
            return render_page("comparison", {**page, "live": SECONDS["comparison"]})

        return runs, make

    def _comparable(self, runs: Sequence[Run]) -> tuple[list[FinishedRun], dict[str, str]]:
        """The runs that one page can compare, and why it cannot compare the others, by path."""
        found: list[FinishedRun] = []
        missing: dict[str, str] = {}
        for run in runs:
            try:
                each = read_run(run.path, self.allow, live=True)
            except UserError as error:
                missing[str(run)] = str(error)
                continue
            twins = [other for other in found if other.is_same_as(each)]
            if not each.summary:
                missing[str(run)] = "it has no score yet of the environment where it is evaluated"
            elif twins:
                missing[str(run)] = f"it is the same run as {twins[0].path}"
            else:
                found.append(each)

        # Runs that learned from other data, such as words and not bytes of a text, have a comparison of their own.
        counts = Counter(each.data for each in found)
        if len(counts) < 2:
            return found, missing
        (most, _), *_ = counts.most_common()
        for each in found:
            if each.data != most:
                missing[str(each.path)] = f"it learned from {each.data}, and these runs from {most}"
        return [each for each in found if each.data == most], missing


def _links_to_comparisons(group: Group, entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Links to the comparison of a group's runs and, if there are more on the same data, of all; `entries` are all."""
    num_here = sum(entry.score is not None for entry in group.entries)
    if not group.data or num_here < 2:
        return []
    query = {"kind": group.kind, "data": group.data}
    here = {**query, "folder": group.folder}
    links = [{"text": "compare these runs", "link": _query(here)}]

    num_everywhere = 0
    for entry in entries:
        is_alike = entry.kind == group.kind and entry.data == group.data
        if is_alike and entry.score is not None:
            num_everywhere += 1
    if num_everywhere > num_here:
        text = f"compare all {num_everywhere} runs on {group.data}"
        links.append({"text": text, "link": _query(query)})
    return links


def _query(values: Mapping[str, str]) -> str:
    """The part of an address after its path; names of folders need not be UTF-8."""
    return f"?{urllib.parse.urlencode(values, errors='surrogateescape')}"


def _row(entry: Entry, variant: str, curve: dict[str, Any]) -> dict[str, Any]:
    """A run as `pages/runs.html` reads it. "sort": by column, what rows are sorted by."""
    # A damaged run, whose kind is not known, has no page. That of the folder itself is the page at "".
    link = ""
    if entry.kind and entry.name != ".":
        link = f"{urllib.parse.quote(entry.name, errors='surrogateescape')}/"
    about = [variant] if variant else []
    if entry.config is not None:
        about.append(f"seed {entry.config.seed}")

    row: dict[str, Any] = {}
    score = entry.score
    if score is not None:
        value, interval = score.texts
        row["score"] = {"text": value, "interval": interval, "name": score.name, "training": score.training}
    row |= {
        "name": entry.name,
        "short": entry.name.rpartition("/")[2],
        "link": link,
        "about": ", ".join(about),
        "error": entry.error,
        "state": entry.state,
        "share": f"{100 * entry.share:.0f} %" if entry.progress else "",
        "progress": entry.amounts,
        "curve": curve,
        "measured": ago(entry.age),
        "command": entry.next,
        "short_command": entry.next.removeprefix(f"{program()} "),
    }
    row["sort"] = {
        "run": entry.name,
        "state": entry.state,
        "progress": entry.share,
        "score": "" if score is None else score.value,
        "measured": entry.age if math.isfinite(entry.age) else "",
    }
    return row


def sparkline(curve: Sequence[tuple[float, float]], ends: tuple[float, float] | None) -> dict[str, Any]:
    """A small curve as `pages/runs.html` draws it, in a box of 100 by 24. Empty without values.

    Args:
        curve: shares of training, and scores there.
        ends: the lowest and the highest score of the box; None for those of the curve.
    """
    if not curve:
        return {}
    scores = [score for _, score in curve]
    if ends is None:
        ends = (min(scores), max(scores))
    low, high = ends
    height = high - low
    if height == 0:
        height = 1.0
    points = []
    for share, score in curve:
        # y grows downward; above and below is a margin of 2.
        x = 100 * min(share, 1.0)
        y = 22 - 20 * (score - low) / height
        points.append(f"{x:.1f},{y:.1f}")
    label = f"from {significant(scores[0])} to {significant(scores[-1])}"
    return {"points": " ".join(points), "end": points[-1].split(","), "label": label}


def _files(run: Run) -> list[Path]:
    """The files that the pages of a run are made of."""
    videos = [run.videos, *run.videos.glob("*")]
    return [run.config_file, run.metrics_file, run.evaluation_file(), run.launches_file, *videos]


def _changed(path: Path) -> tuple[int, int]:
    """What tells whether a file has changed: time and size, or zeros if there is none."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return found.st_mtime_ns, found.st_size
    return 0, 0


def _requested_part(header: str, size: int) -> tuple[int, int] | None:
    """Where the part of a file that a Range header asks for begins and ends; None for the whole file.

    Safari plays no videos without it.
    """
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
    if not found:
        return None
    begin = int(found[1])
    end = size
    if found[2]:
        end = min(int(found[2]) + 1, size)
    if begin >= end:
        return None
    return begin, end


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    server_version = "compressive"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if host not in (f"127.0.0.1:{self.server.server_port}", f"localhost:{self.server.server_port}"):
            return self.send_error(HTTPStatus.FORBIDDEN, "expected a request to this machine by its own name")
        try:
            address = urllib.parse.urlsplit(self.path)
            path = urllib.parse.unquote(address.path, errors="surrogateescape").lstrip("/")
            query = urllib.parse.parse_qs(address.query, keep_blank_values=True, errors="surrogateescape")
            page = self._page(path, query)
            if page:
                return self._answer(page.encode(), MIME_TYPES[".html"], OWN_POLICY)
            file = self._file(path)
            if file is None:
                return self.send_error(HTTPStatus.NOT_FOUND, "no such run, page or video")
            self._send(file)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page was closed
        except UserError as error:
            self.send_error(HTTPStatus.NOT_FOUND, "this cannot be shown", one_line(error))
        except Exception as error:  # a run can be damaged in any way; the others are shown still
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this cannot be shown", one_line(error))

    def _page(self, path: str, query: dict[str, list[str]]) -> str:
        """A page of ours; empty if the path is not that of one."""
        server = self.server
        runs = find_runs(server.folder)
        # The folder may itself be a run, which is then "."; otherwise its page is about all runs in it.
        if path == "" and "." not in runs:
            if "kind" not in query or "data" not in query:
                return server.overview()
            kind = query["kind"][0]
            data = query["data"][0]
            folder = query["folder"][0] if "folder" in query else None
            compared_runs, make = server.comparison(kind, data, folder)
            return server.page(f"{kind} {data} {folder}", compared_runs, make)

        # Only with a "/" behind the name of a run, links of its page lead into its folder.
        is_report = path in ("", "report.html") or path.endswith(("/", "/report.html"))
        name = path.removesuffix("report.html").removesuffix("/") or "."
        if not is_report or name not in runs:
            return ""
        return server.page(name, [runs[name]], lambda: server.report(name, runs[name]))

    def _file(self, path: str) -> Path | None:
        """The page or video at a path, which a run has in its folder `videos`; None if there is none."""
        # With "./" before it, the path of a video of the run "." has the same form as that of others.
        name, _, file = f"./{path}".rpartition("/videos/")
        run = find_runs(self.server.folder).get(name.removeprefix("./") or ".")
        if run is None or Path(file).suffix not in MIME_TYPES:
            return None
        # Nothing outside of the folder is sent: it is no link, and the file is one of its own names, not a path.
        if run.videos.is_symlink() or not run.videos.is_dir() or file not in os.listdir(run.videos):
            return None
        return run.videos / file

    def _send(self, file: Path) -> None:
        """Sends a file, or the part of it that is asked for."""
        kind = MIME_TYPES[file.suffix]
        with os.fdopen(open_regular(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            part = _requested_part(self.headers.get("Range", ""), size)
            if part:
                begin, end = part
                content_range = f"bytes {begin}-{end - 1}/{size}"
            else:
                begin, end = 0, size
                content_range = ""
            opened.seek(begin)
            self._begin(end - begin, kind, FOREIGN_POLICY, content_range)
            for place in range(begin, end, BLOCK):  # not at once: a file of a stranger may be larger than the memory
                self.wfile.write(opened.read(min(BLOCK, end - place)))

    def _answer(self, content: bytes, kind: str, policy: str) -> None:
        self._begin(len(content), kind, policy)
        self.wfile.write(content)

    def _begin(self, size: int, kind: str, policy: str, content_range: str = "") -> None:
        """Sends the headers of an answer, or of a part of a file."""
        self.send_response(HTTPStatus.PARTIAL_CONTENT if content_range else HTTPStatus.OK)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(size),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Accept-Ranges": "bytes",
        }
        if content_range:
            headers["Content-Range"] = content_range
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged."""
