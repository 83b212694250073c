"""A small Hub on loopback that the real `huggingface_hub` client talks to. `from hub_server import HubServer`."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


TOKEN = "hf_" + "Aa1" * 12  # may write as `me`
READER = "hf_" + "Rr2" * 12  # may read
LARGE = (".safetensors", ".bin", ".pt", ".png", ".parquet")  # go by LFS, as the Hub's .gitattributes has it
TYPES = {"models": "model", "datasets": "dataset"}


@dataclass
class Fault:
    """
    What goes wrong with requests whose `METHOD path` matches.

    Args:
        pattern (`str`): regular expression.
        status (`int`, *optional*): answered in place of what is right; left out, the line is dropped in the middle.
        times (`int`, *optional*): how often; always if left out.
    """

    pattern: str
    status: int | None = None
    times: int | None = None
    seen: int = 0

    def hits(self, request: str) -> bool:
        if not re.search(self.pattern, request) or (self.times is not None and self.seen >= self.times):
            return False
        self.seen += 1
        return True


@dataclass
class Repo:
    """The commits of one branch: what each is called, and the content of every file then."""

    private: bool = False
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return (self.commits[-1][0], self.commits[-1][2])
        return next(((oid, files) for oid, _, files in self.commits if oid == revision), None)

    def commit(self, message: str, files: dict[str, bytes]) -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{message}{sorted(files)}".encode()).hexdigest()
        self.commits.append((oid, message, files))
        return oid


class HubServer:
    """
    Runs while a `with` block does.

    Attributes:
        url (`str`): its address, for `HF_ENDPOINT`.
        repos (`dict[tuple[str, str], Repo]`): by type and name.
        large (`dict[str, bytes]`): the large files, by SHA-256.
        faults (`list[Fault]`): what goes wrong.
        requests (`list[str]`): `METHOD path` of each request.
        rejected (`list[str]`): why cards were refused.
    """

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.rejected: list[str] = []
        self.lock = threading.RLock()

    def __enter__(self) -> "HubServer":
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self, name: str, repo_type: str = "model") -> dict[str, bytes]:
        """What a repository holds now."""
        return self.repos[repo_type, name].at("main")[1]

    def messages(self, name: str, repo_type: str = "model") -> list[str]:
        """The messages of its commits, from the oldest, without that which makes it."""
        return [message for _, message, _ in self.repos[repo_type, name].commits[1:]]


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self):
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET

    def _handle(self) -> None:
        url = urlsplit(self.path)
        self.where, self.query = unquote(url.path), parse_qs(url.query)
        request = f"{self.command} {self.where}"
        with self.hub.lock:
            self.hub.requests.append(request)
            fault = next((fault for fault in self.hub.faults if fault.hits(request)), None)
        length = int(self.headers.get("Content-Length") or 0)
        if fault is not None and fault.status is None:
            self.rfile.read(min(length, 16))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.body = self.rfile.read(length) if length else self._chunks()
        if fault is not None:
            return self._answer(fault.status, {"error": f"as the test wants: {fault.status}"})
        with self.hub.lock:
            for pattern, method in ROUTES:
                match = re.fullmatch(pattern, request)
                if match:
                    return method(self, **match.groupdict())
        self._answer(404, {"error": f"no such route: {request}"})

    def _chunks(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def _answer(self, status: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        if not isinstance(content, bytes):
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # ---- Who asks, and for what ----

    @property
    def user(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return {TOKEN: "me", READER: "reader"}.get(token)

    def _repo(self, types: str | None, name: str, writes: bool = False) -> Repo | None:
        """The repository, or `None` once it has been told why there is none."""
        repo = self.hub.repos.get((TYPES[types or "models"], name))
        if repo is None or (repo.private and self.user != "me"):
            status = 404 if self.user else 401
            self._answer(status, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif writes and self.user is None:
            self._answer(401, {"error": "Invalid username or password."})
        elif writes and self.user != "me":
            self._answer(403, {"error": "You don't have the rights to write here."})
        else:
            return repo
        return None

    # ---- Routes ----

    def whoami(self):
        if self.user is None:
            return self._answer(401, {"error": "Invalid username or password."})
        self._answer(200, {"name": self.user, "type": "user", "auth": {"accessToken": {"role": "write"}}, "orgs": []})

    def create(self):
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or self.user}/{wanted['name']}"
        kind = wanted.get("type") or "model"
        url = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        if self.user is None:
            return self._answer(401, {"error": "Invalid username or password."})
        if self.user != "me" or not name.startswith("me/"):
            return self._answer(403, {"error": "You don't have the rights to create a repository there."})
        if (kind, name) in self.hub.repos:
            return self._answer(409, {"error": "You already created this repo", "url": url})
        repo = self.hub.repos[kind, name] = Repo(wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.commit("initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
        self._answer(200, {"url": url, "name": name, "id": name})

    def check_card(self):
        wanted = json.loads(self.body)
        problem = card_problem(wanted["content"], wanted.get("repoType") or "model")
        if problem:
            self.hub.rejected.append(problem)
            return self._answer(400, {"errors": [{"message": problem}], "warnings": []})
        self._answer(200, {"errors": [], "warnings": []})

    def info(self, types: str, name: str, revision: str | None = None):
        if (repo := self._repo(types, name)) is None:
            return
        if (found := repo.at(revision or "main")) is None:
            return self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        siblings = [{"rfilename": path} for path in found[1]]
        self._answer(200, {"id": name, "sha": found[0], "private": repo.private, "tags": [], "siblings": siblings})

    def tree(self, types: str, name: str, revision: str, folder: str | None = None):
        if (repo := self._repo(types, name)) is None:
            return
        if (found := repo.at(revision)) is None:
            return self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        inside = f"{folder}/" if folder else ""
        files = {path: content for path, content in found[1].items() if path.startswith(inside)}
        if folder and not files:
            return self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        entries = [_entry(path, content) for path, content in files.items()]
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(inside)]
        deeper = {
            inside + path.removeprefix(inside).partition("/")[0] for path in files if "/" in path.removeprefix(inside)
        }
        entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(deeper)]
        self._answer(200, entries)

    def paths_info(self, types: str, name: str, revision: str):
        if (repo := self._repo(types, name)) is not None:
            wanted = json.loads(self.body)["paths"]
            files = repo.at(revision)[1]
            self._answer(200, [_entry(path, files[path]) for path in wanted if path in files])

    def preupload(self, types: str, name: str, revision: str):
        if (repo := self._repo(types, name, writes=True)) is None:
            return
        there = repo.at(revision)[1]
        out = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            mode = "lfs" if path.endswith(LARGE) else "regular"
            oid = _entry(path, there[path])["oid" if mode == "regular" else "lfs"] if path in there else None
            oid = oid["oid"] if isinstance(oid, dict) else oid
            out.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer(200, {"files": out})

    def lfs_batch(self, types: str | None, name: str):
        if self._repo(types, name, writes=True) is None:
            return
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            oid = wanted["oid"]
            actions = {"upload": {"href": f"{self.hub.url}/lfs/{oid}"}}
            actions["verify"] = {"href": f"{self.hub.url}/lfs-verify"}
            objects.append({**wanted, **({} if oid in self.hub.large else {"actions": actions})})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str):
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self._answer(400, {"error": "the content is not what was announced"})
        self.hub.large[oid] = self.body
        self._answer(200)

    def lfs_verify(self):
        wanted = json.loads(self.body)
        right = len(self.hub.large.get(wanted["oid"], b"")) == wanted["size"]
        self._answer(200 if right else 404, {})

    def commit(self, types: str, name: str, revision: str):
        if (repo := self._repo(types, name, writes=True)) is None:
            return
        if revision != "main":
            return self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        files, message = dict(repo.at("main")[1]), ""
        for line in self.body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                if value["oid"] not in self.hub.large:
                    return self._answer(400, {"error": f"{value['path']} was never uploaded"})
                files[value["path"]] = self.hub.large[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            else:
                return self._answer(400, {"error": f"unknown operation {key}"})
        oid = repo.commit(message, files)
        self._answer(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"})

    def resolve(self, name: str, revision: str, path: str, types: str | None = None):
        if (repo := self._repo(types, name)) is None:
            return
        if (found := repo.at(revision)) is None:
            return self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        if path not in found[1]:
            return self._answer(
                404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=found[0]
            )
        content = found[1][path]
        entry = _entry(path, content)
        oid = entry.get("lfs", entry)["oid"]
        self._answer(200, content, ETag=f'"{oid}"', X_Repo_Commit=found[0], Accept_Ranges="none")


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
API = rf"/api/(?P<types>models|datasets)/{NAME}"
PREFIX = r"/(?:(?P<types>datasets)/)?"
ROUTES: list[tuple[str, Callable]] = [
    (r"GET /api/whoami-v2", Handler.whoami),
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", Handler.check_card),
    (rf"GET {API}(?:/revision/(?P<revision>[^/]+))?", Handler.info),
    (rf"GET {API}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", Handler.tree),
    (rf"POST {API}/paths-info/(?P<revision>[^/]+)", Handler.paths_info),
    (rf"POST {API}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    (rf"POST {API}/commit/(?P<revision>[^/]+)", Handler.commit),
    (rf"POST {PREFIX}{NAME}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (r"PUT /lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    (r"POST /lfs-verify", Handler.lfs_verify),
    (rf"(?:GET|HEAD) {PREFIX}{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]


def card_problem(content: str, repo_type: str) -> str | None:
    """What the Hub would refuse about the metadata of a card; `None` if it takes them."""
    match = re.match(r"---\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", content, re.DOTALL)
    if match is None:
        return None
    try:
        data = yaml.safe_load(match.group(1))
    except yaml.YAMLError as err:
        return f"no YAML: {err}"
    if not isinstance(data, dict):
        return "no mapping"
    for name in ("base_model", "datasets"):
        for value in [data[name]] if isinstance(data.get(name), str) else data.get(name, []):
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(value)):
                return f"{name} {value!r} is no name of a repository"
    tags = data.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        return "tags must be a list of texts"
    for model in data.get("model-index", []) if repo_type == "model" else []:
        if not isinstance(model.get("name"), str) or not model["name"] or not isinstance(model.get("results"), list):
            return "model-index needs name and results"
        for result in model["results"]:
            dataset, metrics = result.get("dataset", {}), result.get("metrics")
            if not isinstance(result.get("task", {}).get("type"), str) or not metrics:
                return "a result needs task.type and metrics"
            if not all(isinstance(dataset.get(key), str) and dataset[key] for key in ("type", "name")):
                return "a result needs dataset.type and dataset.name"
            if not all(isinstance(metric.get("type"), str) and "value" in metric for metric in metrics):
                return "a metric needs type and value"
    return None


def _entry(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": oid}
    if path.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry
