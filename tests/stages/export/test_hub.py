"""The way to the Hub, with a transport that stands in for it: what is sent, and what is said where it is refused."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from huggingface_hub import configure_http_backend
from requests.adapters import BaseAdapter

from pipeline.system.errors import PipelineError
from stages.export import exported


class Transport(BaseAdapter):
    """Answers as the Hub does, and keeps what it was sent; ``status`` of anything else than 200 refuses all."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.reachable = 200, True
        self.sent: dict[str, bytes] = {}
        self.there: dict[str, bytes] = {}
        self.deleted: list[str] = []
        self.created: list[dict[str, Any]] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        if not self.reachable:
            raise requests.ConnectionError("no route")
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        path = request.url.removeprefix("https://huggingface.co")
        if self.status == 200 and "/resolve/main/" in path:
            return self._file(request, path.partition("/resolve/main/")[2])
        return self._answer(request, self._content(path.partition("?")[0], body))

    def close(self) -> None:
        pass

    def _content(self, path: str, body: Any) -> Any:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return {"url": f"https://huggingface.co/{self.created[-1]['organization']}/{self.created[-1]['name']}"}
        if path.endswith("/tree/main"):
            return [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in self.there]
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if path.endswith("/commit/main"):
            content = b"".join(body) if not isinstance(body, bytes) else body
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "deletedFile":
                    self.deleted.append(line["value"]["path"])
                if line["key"] == "file":
                    self.sent[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            commit = "https://huggingface.co/me/films/commit/0"
            return {"commitUrl": commit, "commitOid": "0" * 40, "success": True}
        return {"siblings": [], "id": "me/films", "sha": "0" * 40}

    def _file(self, request: requests.PreparedRequest, name: str) -> requests.Response:
        response = self._answer(request, None)
        response.status_code, response._content = (200, self.there[name]) if name in self.there else (404, b"")
        response.headers["X-Error-Code"] = "EntryNotFound"
        return response

    def _answer(self, request: requests.PreparedRequest, content: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request, response.url = self.status, request, str(request.url)
        response._content = json.dumps(content if self.status == 200 else {"error": "refused"}).encode()
        return response


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transport]:
    transport = Transport()

    def session() -> requests.Session:
        opened = requests.Session()
        opened.mount("https://", transport)
        return opened

    monkeypatch.setenv("HF_TOKEN", "hf_test")
    configure_http_backend(session)
    yield transport
    configure_http_backend()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "export" / "films").mkdir(parents=True)
    (tmp_path / "export" / "README.md").write_text("# films\n")
    (tmp_path / "export" / "films" / "adapter.safetensors").write_bytes(b"weights")
    return tmp_path / "export"


def test_every_file_is_sent_into_a_private_repository(transport: Transport, folder: Path) -> None:
    assert exported.push(folder, "me/films") == exported.address_of("me/films")
    assert [(each["organization"], each["name"], each["private"]) for each in transport.created] == [
        ("me", "films", True)
    ]
    assert transport.sent == {"README.md": b"# films\n", "films/adapter.safetensors": b"weights"}


def test_what_an_earlier_export_left_is_deleted_and_nothing_else(transport: Transport, folder: Path) -> None:
    listed = {"files": ["README.md", "model.onnx", "a[b].txt", "gone.json", 7]}
    names = ("README.md", "model.onnx", "a[b].txt", "ab.txt", "notes.md", ".gitattributes")
    transport.there = {"task.json": json.dumps(listed).encode(), **dict.fromkeys(names, b"")}
    exported.push(folder, "me/films")
    assert sorted(transport.deleted) == ["a[b].txt", "model.onnx"]
    assert transport.sent.keys() == {"README.md", "films/adapter.safetensors"}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"files": "notes.md"}', b"\xff"])
def test_a_repository_whose_task_file_is_no_exports_keeps_its_files(
    content: bytes, transport: Transport, folder: Path
) -> None:
    transport.there = {"task.json": content, "notes.md": b""}
    exported.push(folder, "me/films")
    assert (transport.deleted, len(transport.sent)) == ([], 2)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "log in"), (403, "no right to write"), (500, "refused it (500)"), (None, "cannot be reached")],
)
def test_what_the_hub_refuses_is_one_message(
    transport: Transport, folder: Path, status: int | None, message: str
) -> None:
    transport.status, transport.reachable = status or 200, status is not None
    with pytest.raises(PipelineError) as refused:
        exported.push(folder, "me/films")
    assert message in str(refused.value) and "me/films" in str(refused.value)


@pytest.mark.parametrize("name", ["films", "me/films/more", "me/..films", "", "me/fi lms", "-me/films"])
def test_names_that_no_repository_can_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="--push-to-hub"):
        exported.check_export("films", "auto", tmp_path / "out", name, tmp_path, tmp_path)
