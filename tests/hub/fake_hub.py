"""A small server that answers as the Hub does: model info, tree, and files, the large ones from another host.

Written after what huggingface_hub 2.4 asks and reads, and the answers that users cite in its issues.
Everything is served from folders; faults are set on the `Repository` while the server runs.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

GOOD_TOKEN = "hf_TESTONLYgoodgoodgoodgoodgoodgoodgo"
NOT_ACCEPTED_TOKEN = "hf_TESTONLYnotacceptednotacceptednota"
TOKENS = (GOOD_TOKEN, NOT_ACCEPTED_TOKEN)
_LFS_SUFFIXES = (".safetensors", ".bin", ".ckpt", ".onnx", ".msgpack")
_BLOCK_BYTES = 16 * 1024


@dataclass
class Repository:
    """A repository, and the faults it has now.

    Attributes:
        files: those of the newest commit; `history` has those of commits before it.
        is_gated: files need a token whose owner accepted the licence.
        accepted: the tokens of those.
        status: answer every request so (429, 503); 0 is none.
        told_bytes: sizes told instead of the true ones, by file.
        cut_after: the connection breaks after so many bytes of a larger file; `cuts` times.
        bytes_per_second: the speed of large files; 0 is unlimited.
        is_stalled: large files stop in the middle, and the connection stays open.
        spoilt: large files arrive with their first byte changed.
        is_hidden: a login page is answered instead, as in a hotel.
    """

    files: dict[str, bytes]
    history: dict[str, dict[str, bytes]] = field(default_factory=dict)
    is_gated: bool = False
    accepted: set[str] = field(default_factory=lambda: {GOOD_TOKEN})
    status: int = 0
    told_bytes: dict[str, int] = field(default_factory=dict)
    cut_after: int = 0
    cuts: int = 0
    bytes_per_second: int = 0
    is_stalled: bool = False
    spoilt: bool = False
    is_hidden: bool = False

    @classmethod
    def of_folder(cls, folder: Path, **faults: object) -> "Repository":
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        return cls(files, **faults)

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name, content in sorted(self.files.items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()

    def change(self, **files: bytes) -> None:
        """Make a new commit."""
        self.history[self.commit] = dict(self.files)
        self.files |= files

    def describe(self, name: str) -> dict[str, object]:
        content = self.files[name]
        size = self.told_bytes.get(name, len(content))
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "oid": git, "size": size, "path": name}
        if name.endswith(_LFS_SUFFIXES):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
        return entry


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    path: str
    range: str
    authorization: str


class FakeHub:
    """Use `running()`. `requests` are those seen so far."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self.endpoint = self.storage = ""

    @contextmanager
    def running(self) -> Iterator["FakeHub"]:
        # Two names of this machine: to a client they are two hosts, as the Hub and its storage are.
        hub, storage = (ThreadingHTTPServer((host, 0), _handler(self)) for host in ("127.0.0.1", "127.0.0.2"))
        self.endpoint, self.storage = (f"http://{s.server_address[0]}:{s.server_port}" for s in (hub, storage))
        for server in (hub, storage):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self.closing.set()
            for server in (hub, storage):
                server.shutdown()
                server.server_close()

    def fetched(self, suffix: str = "") -> list[str]:
        """Paths of the files whose contents were asked for, in order."""
        files = [r.path for r in self.requests if r.method == "GET" and "/resolve/" in r.path]
        return [path.split("/resolve/")[1].split("/", 1)[1] for path in files if path.endswith(suffix)]


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            headers = self.headers
            hub.requests.append(
                Request(self.command, headers["Host"], path, headers["Range"] or "", headers["Authorization"] or "")
            )
            parts = path.strip("/").split("/")
            if parts[0] == "storage":
                self._storage("/".join(parts[1:3]), "/".join(parts[3:]))
            elif parts[:2] == ["api", "models"]:
                self._api("/".join(parts[2:4]), parts[4:])
            elif len(parts) > 4 and parts[2] == "resolve":
                self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
            else:
                self._error(404, "EntryNotFound", "Entry not found")

        # -- who may ask ----------------------------------------------------------------------------------------------

        def _token(self) -> str:
            return (self.headers["Authorization"] or "").removeprefix("Bearer ")

        def _repository(self, repo_id: str, revision: str | None) -> Repository | None:
            """The repository, or None when the request has been answered with an error."""
            if self._token() and self._token() not in TOKENS:
                self._error(401, "", "Invalid credentials in Authorization header")
                return None
            repository = hub.repositories.get(repo_id)
            if repository is None:
                if self._token():
                    self._error(404, "RepoNotFound", "Repository not found")
                else:
                    self._error(401, "RepoNotFound", "Invalid username or password.")
                return None
            if repository.status:
                wait = {"Retry-After": "7"} if repository.status == 429 else {}
                self._error(repository.status, "", "We had to rate limit you" if wait else "down", wait)
                return None
            if repository.is_hidden:
                self._send(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
                return None
            if revision in repository.history:
                return replace(repository, files=repository.history[revision])
            if revision not in (None, "main", repository.commit):
                self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                return None
            return repository

        # -- the Hub --------------------------------------------------------------------------------------------------

        def _api(self, repo_id: str, rest: list[str]) -> None:
            what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", None)
            repository = self._repository(repo_id, revision)
            if repository is None:
                return
            entries = [repository.describe(name) for name in repository.files]
            if what == "tree":
                self._json(entries)
                return
            with_blobs = "blobs" in parse_qs(urlsplit(self.path).query)
            siblings = [_sibling(entry, with_blobs) for entry in entries]
            gated = "manual" if repository.is_gated else False
            self._json({"id": repo_id, "sha": repository.commit, "gated": gated, "siblings": siblings})

        def _resolve(self, repo_id: str, revision: str, name: str) -> None:
            repository = self._repository(repo_id, revision)
            if repository is None:
                return
            if repository.is_gated and not self._token():
                self._error(401, "GatedRepo", f"Access to model {repo_id} is restricted. Please log in.")
                return
            if repository.is_gated and self._token() not in repository.accepted:
                self._error(403, "GatedRepo", f"Access to model {repo_id} is restricted: not in the authorized list.")
                return
            commit = {"X-Repo-Commit": repository.commit}
            if name not in repository.files:
                self._error(404, "EntryNotFound", "Entry not found", commit)
                return
            entry = repository.describe(name)
            if "lfs" in entry:
                headers = commit | {
                    "Location": f"{hub.storage}/storage/{repo_id}/{name}",
                    "X-Linked-Etag": f'"{entry["lfs"]["oid"]}"',
                    "X-Linked-Size": str(entry["size"]),
                }
                self._send(302, b"", headers)
            else:
                self._send(200, repository.files[name], commit | {"ETag": f'"{entry["oid"]}"'})

        # -- the storage ----------------------------------------------------------------------------------------------

        def _storage(self, repo_id: str, name: str) -> None:
            repository = hub.repositories[repo_id]
            content = repository.files[name]
            if repository.spoilt:
                content = bytes([content[0] ^ 1]) + content[1:]
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if self.headers["Range"] else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if self.command == "HEAD":
                return
            end = len(content)
            if repository.cuts > 0 and end - start > repository.cut_after:
                repository.cuts -= 1
                end = min(end, start + repository.cut_after)
            if repository.is_stalled:
                end = (start + end) // 2
            try:
                self._pour(repository, content[start:end])
                if repository.is_stalled:
                    hub.closing.wait(60)
            except OSError:  # the client went away
                pass
            if end < len(content):
                self.close_connection = True

        def _pour(self, repository: Repository, content: bytes) -> None:
            for begin in range(0, len(content), _BLOCK_BYTES):
                block = content[begin : begin + _BLOCK_BYTES]
                self.wfile.write(block)
                if repository.bytes_per_second:
                    time.sleep(len(block) / repository.bytes_per_second)

        # -- answers --------------------------------------------------------------------------------------------------

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _error(self, status: int, code: str, message: str, more: dict[str, str] | None = None) -> None:
            headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | (more or {})
            self._send(status, json.dumps({"error": message}).encode(), headers)

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _sibling(entry: dict[str, object], with_blobs: bool) -> dict[str, object]:
    if not with_blobs:
        return {"rfilename": entry["path"]}
    sibling = {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
    if "lfs" in entry:
        lfs = entry["lfs"]
        sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return sibling
