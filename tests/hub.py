"""A stand-in for the Hugging Face Hub on this machine: as much of its HTTP interface as uploads and downloads use."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standin"
"""The only token that may write."""


class Hub(ThreadingHTTPServer):
    """Repositories of models in memory. files: contents by path, by repository. messages: of its commits."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.messages: dict[str, list[str]] = {}
        self.unknown: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def revision(self, name: str) -> str:
        """The commit's SHA-1, which depends on the content."""
        return hashlib.sha1(repr(sorted(self.files[name].items())).encode()).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that serves as long as the context."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        if "/paths-info/" in path:
            self._paths_info(path, body)
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(401, "Unauthorized", "Invalid username or password.")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            modes = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self._answer(modes and {"files": [mode | {"shouldIgnore": False} for mode in modes]})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines() if line])
        else:
            self._unknown()

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        url = f"{self.server.address}/{name}"
        if name in self.server.files:
            self._error(409, "RepoExists", "You already created this model repo", {"url": url})
            return
        self.server.files[name] = {".gitattributes": b"*.mp4 filter=lfs\n"}
        self.server.messages[name] = []
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.server.private.add(name)
        self._answer({"url": url, "name": name})

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = self.server.files[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.messages[name].append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        revision = self.server.revision(name)
        url = f"{self.server.address}/{name}/commit/{revision}"
        self._answer({"commitUrl": url, "commitOid": revision, "success": True})

    def _paths_info(self, path: str, body: bytes) -> None:
        name = path.removeprefix("/api/models/").partition("/paths-info/")[0]
        text = body.decode()
        wanted = json.loads(text)["paths"] if text.startswith("{") else re.findall(r"paths=([^&]*)", unquote(text))
        self._answer([entry for entry in self._tree(name) if entry["path"] in wanted])

    def _read(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            self._who()
            return
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        is_hidden = name in self.server.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        if name not in self.server.files or is_hidden:
            self._error(404, "RepoNotFound", "Repository not found")
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+(/revision/[^/]+)?", path):
            siblings = [{"rfilename": file} for file in self.server.files[name]]
            private = name in self.server.private
            about = {"id": name, "modelId": name, "sha": self.server.revision(name), "private": private}
            self._answer({**about, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})
        elif found := re.fullmatch(r"/api/models/[^/]+/[^/]+/tree/[^/]+(/.*)?", path):
            below = (found[1] or "").strip("/")
            self._answer([entry for entry in self._tree(name) if entry["path"].startswith(below)])
        elif found := re.fullmatch(r"/[^/]+/[^/]+/resolve/[^/]+/(.*)", path):
            self._file(name, found[1])
        else:
            self._unknown()

    def _who(self) -> None:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            self._answer({"type": "user", "name": "me", "auth": {"type": "access_token"}})
        else:
            self._error(401, "Unauthorized", "Invalid username or password.")

    def _tree(self, name: str) -> list[dict[str, Any]]:
        """Files and folders as the Hub lists them."""
        found: dict[str, dict[str, Any]] = {}
        for path, content in sorted(self.server.files[name].items()):
            parts = path.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                found[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            found[path] = {"type": "file", "path": path, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        return list(found.values())

    def _file(self, name: str, path: str) -> None:
        content = self.server.files[name].get(path)
        if content is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.server.revision(name)}
        self._send(200, content, "application/octet-stream", {**headers, "Accept-Ranges": "bytes"})

    def _answer(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), "application/json", {})

    def _error(self, status: int, code: str, message: str, more: dict[str, str] | None = None) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, json.dumps({"error": message} | (more or {})).encode(), "application/json", headers)

    def _unknown(self) -> None:
        self.server.unknown.append(f"{self.command} {self.path}")
        self._error(501, "NotImplemented", f"the stand-in does not know {self.command} {self.path}")

    def _send(self, status: int, content: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
