"""A local server that speaks as much of the Hugging Face Hub's protocol as `huggingface_hub` uses for models."""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse


@contextlib.contextmanager
def local_hub(tmp_path, monkeypatch):
    """A Hub of a test's own, an empty cache, no settings of the user's, and no patience."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    server = HubServer()
    for name in [name for name in os.environ if name.startswith(("HF_", "KERAS_VIT_")) or name.endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    template = server.base + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.base)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    yield server
    server.close()


@dataclasses.dataclass
class Repository:
    """A repository: its files by name, and what the Hub says of it."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    error: tuple[int, str] | None = None  # status and error code of the answer to requests for files
    api_error: tuple[int, str] | None = None  # of the answer to requests for what the repository is
    etags: dict[str, str] = dataclasses.field(default_factory=dict)  # where they are not the files' hashes
    private: bool | None = None  # what the request that made it said
    describes_commit: bool = True  # a mirror may not

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def etag(self, name: str) -> str:
        """The SHA-256 of weights, and git's name of small files."""
        data = self.files[name]
        small = hashlib.sha1(b"blob %d\0" % len(data) + data)
        return self.etags.get(name, (small if name.endswith(".json") else hashlib.sha256(data)).hexdigest())


class LocalServer:
    """A server on this machine that gives every request to `answer(handler)`."""

    def __init__(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler):
                self.answer(handler)

            do_HEAD = do_POST = do_GET

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # clients that hang up are part of the tests
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class HubServer(LocalServer):
    """The server; `seen` has the requests as `METHOD path`."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[str, Repository] = {}
        self.pages: dict[str, bytes] = {}  # files elsewhere, by their paths
        self.seen: list[str] = []
        self.down = False

    def downloads(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.seen if path.startswith("GET ") and "/api/" not in path]

    def answer(self, handler) -> None:
        method, path = handler.command, urllib.parse.urlsplit(handler.path).path
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if path.startswith("/api/agent"):  # a registry that the library may ask for, and that has nothing to do with us
            return self._send(handler, 404, b"")
        self.seen.append(f"{method} {urllib.parse.unquote(path)}")
        if self.down:
            return self._send(handler, 503, b"busy")
        if method == "POST":
            return self._post(handler, path, body)
        if asked := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?()", path):
            return self._get(handler, *map(urllib.parse.unquote, asked.groups("main")))
        if asked := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._get(handler, *map(urllib.parse.unquote, asked.groups()))
        return self._send(handler, 200 if path in self.pages else 404, self.pages.get(path, b""))

    def _get(self, handler, name, revision, file) -> None:
        repository = self.repositories.get(name)
        if repository is None:
            return self._refuse(handler, 401, "RepoNotFound")
        if error := repository.error if file else repository.api_error:
            return self._refuse(handler, *error)
        if revision not in (*repository.revisions, repository.commit):
            return self._refuse(handler, 404, "RevisionNotFound")
        if file and file not in repository.files:
            return self._refuse(handler, 404, "EntryNotFound")
        if file:
            headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.etag(file)}"'}
            return self._send(handler, 200, repository.files[file], headers)
        siblings = [{"rfilename": name} for name in repository.files]
        commit = repository.commit if repository.describes_commit else None
        return self._json(handler, id=name, sha=commit, siblings=siblings, tags=[], private=False)

    def _post(self, handler, path, body) -> None:
        if path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields.get('organization') or 'me'}/{fields['name']}"
            status = 409 if name in self.repositories else 200
            self.repositories.setdefault(name, Repository({})).private = fields.get("visibility") == "private"
            return self._json(handler, status, url=f"{self.base}/{name}", name=name, id=name)
        if path == "/api/validate-yaml":
            return self._json(handler, warnings=[], errors=[])
        asked = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/(.+)", path)
        if not asked:
            return self._send(handler, 404, b"")
        repository = self.repositories[asked[1]]
        if asked[2] == "preupload" and repository.api_error:
            return self._refuse(handler, *repository.api_error)
        if asked[2] == "preupload":
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            return self._json(handler, files=[{**file, "shouldIgnore": False} for file in files])
        for operation in map(json.loads, body.splitlines()):
            if operation["key"] == "file":
                repository.files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
        url = f"{self.base}/{asked[1]}/commit/{repository.commit}"
        return self._json(handler, commitUrl=url, commitOid=repository.commit, hookOutput="")

    def _json(self, handler, status=200, **fields) -> None:
        self._send(handler, status, json.dumps(fields).encode(), {"Content-Type": "application/json"})

    def _refuse(self, handler, status, code) -> None:
        self._send(handler, status, b"", {"X-Error-Code": code} if code else {})

    def _send(self, handler, status, data, headers=None) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)
