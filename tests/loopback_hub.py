"""A Hugging Face Hub on this machine, as far as uploads and downloads of huggingface_hub 2.4 ask of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests import loopback

TOKEN = "hf_good"
ATTRIBUTES = ".gitattributes"


@dataclass
class Repository:
    """`files` are {path: SHA-256 of its blob}; `commits` are the operations of each commit, as they were sent."""

    private: bool
    files: dict[str, str] = field(default_factory=dict)
    commits: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def head(self) -> str:
        return f"{len(self.commits) + 1:040x}"


class Hub:
    """Its state.

    By `faults` {step: status, "cut", "drip", "flood" or bytes} it refuses a step, closes the connection in its middle,
    answers a byte at a time, or without end, or with other bytes.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []  # "METHOD path" of each, in order
        self.faults: dict[str, int | str | bytes] = {}
        self.endpoint = ""

    def keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return digest

    def make(self, name: str, private: bool = True, **files: bytes) -> Repository:
        """A repository as the hub's site makes it, with its .gitattributes, and more files."""
        contents = {ATTRIBUTES: b"*.safetensors filter=lfs\n", **{k.replace("__", "."): v for k, v in files.items()}}
        self.repositories[name] = Repository(private, {path: self.keep(x) for path, x in contents.items()})
        return self.repositories[name]

    def content(self, name: str, path: str) -> bytes:
        return self.blobs[self.repositories[name].files[path]]


STEPS = {  # {method and path: the step, whose method of the handler answers}
    r"GET /api/models/(?P<name>[^/]+/[^/]+)(/revision/.*)?": "info",
    r"GET /api/models/(?P<name>[^/]+/[^/]+)/tree/.*": "tree",
    r"POST /api/validate-yaml": "validate",
    r"POST /api/repos/create": "create",
    r"POST /api/models/(?P<name>[^/]+/[^/]+)/preupload/main": "preupload",
    r"POST /(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch": "batch",
    r"PUT /blobs/(?P<name>\w+)": "put",
    r"POST /api/models/(?P<name>[^/]+/[^/]+)/commit/main": "commit",
    r"(GET|HEAD) /(?P<name>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)": "resolve",
}


class Handler(loopback.Handler):
    hub: Hub

    def handle_any(self) -> None:
        asked = f"{self.command} {unquote(urlsplit(self.path).path)}"
        self.hub.requests.append(asked)
        known = ((step, m.groupdict()) for pattern, step in STEPS.items() if (m := re.fullmatch(pattern, asked)))
        step, names = next(known, ("unknown", {}))
        fault = self.hub.faults.get(step)
        length = int(self.headers.get("Content-Length", 0))
        if fault == "cut":
            self.rfile.read(length // 2)
            return self.hang_up()
        body = self.rfile.read(length)
        token = self.headers.get("Authorization")
        if step not in ("put", "validate", "unknown") and token != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid username or password."}, 401)
        if fault in ("drip", "flood"):
            return self.answer_slowly(b" " if fault == "drip" else b" " * (1 << 20), 0.05 if fault == "drip" else 0)
        if isinstance(fault, bytes):
            return self.answer(fault, **({"Content_Encoding": "gzip"} if fault[:2] == b"\x1f\x8b" else {}))
        if fault:
            return self.answer({"error": f"refused at {step}"}, int(fault))
        getattr(self, step)(body, **names)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def answer(self, value: Any, status: int = 200, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send(status, content, **{"Content_Type": "application/json", **headers})

    def answer_slowly(self, part: bytes, seconds: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # until nobody listens
            while True:
                self.wfile.write(part)
                time.sleep(seconds)

    def unknown(self, body: bytes) -> None:
        self.answer({"error": "not here"}, 404)

    def info(self, body: bytes, name: str) -> None:
        found = self.hub.repositories.get(name)
        if found is None:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        files = [{"rfilename": path} for path in found.files]
        self.answer({"id": name, "private": found.private, "sha": found.head, "siblings": files, "tags": []})

    def tree(self, body: bytes, name: str) -> None:
        found = self.hub.repositories[name]
        self.answer(
            [
                {"type": "file", "path": path, "oid": sha[:40], "size": len(self.hub.blobs[sha])}
                for path, sha in found.files.items()
            ]
        )

    def validate(self, body: bytes) -> None:
        stated = re.search(r"^license: (.*)$", json.loads(body)["content"], re.M)
        if stated and stated[1] not in ("apache-2.0", "mit"):
            return self.answer({"errors": [{"message": '"license" must be one of a list'}], "warnings": []}, 400)
        self.answer({"errors": [], "warnings": []})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repositories:
            return self.answer({"error": "You already created this model repo"}, 409)
        self.hub.make(name, asked["visibility"] == "private")
        self.answer({"url": f"{self.hub.endpoint}/{name}"})

    def preupload(self, body: bytes, name: str) -> None:
        self.answer(
            {
                "files": [
                    {
                        "path": each["path"],
                        "uploadMode": "lfs" if each["path"].endswith((".safetensors", ".bin", ".npz")) else "regular",
                        "shouldIgnore": False,
                    }
                    for each in json.loads(body)["files"]
                ]
            }
        )

    def batch(self, body: bytes, name: str) -> None:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.hub.endpoint}/blobs/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": [{k: o[k] for k in ("oid", "size", "actions")} for o in objects]})

    def put(self, body: bytes, name: str) -> None:
        assert hashlib.sha256(body).hexdigest() == name, "other bytes than announced"
        self.hub.keep(body)
        self.answer({})

    def commit(self, body: bytes, name: str) -> None:
        found = self.hub.repositories[name]
        header, *operations = [json.loads(line) for line in body.splitlines()]
        if header["value"].get("parentCommit", found.head) != found.head:
            return self.answer({"error": "the branch has moved"}, 412)
        found.commits.append(operations)
        for each in operations:
            value = each["value"]
            if each["key"] == "deletedFile":
                del found.files[value["path"]]
            elif each["key"] == "lfsFile":
                found.files[value["path"]] = value["oid"]
            else:
                found.files[value["path"]] = self.hub.keep(base64.b64decode(value["content"]))
        self.answer({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{found.head}", "commitOid": found.head})

    def resolve(self, body: bytes, name: str, path: str) -> None:
        found = self.hub.repositories[name]
        if path not in found.files:
            return self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
        sha = found.files[path]
        self.answer(self.hub.blobs[sha], ETag=f'"{sha}"', X_Repo_Commit=found.head)


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers at `endpoint`."""
    hub = Hub()
    with loopback.listening(Handler, hub=hub) as hub.endpoint:
        yield hub
