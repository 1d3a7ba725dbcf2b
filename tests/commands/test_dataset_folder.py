"""The upload of a folder, to a stand-in of the Hugging Face hub on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from reasoning_gym_environment.commands import dataset_folder, export
from reasoning_gym_environment.errors import EnvironmentSetupError

REPO = "someone/items"


class Hub:
    """Answers the requests that make a repository, and those of an upload of small files. Records what arrives."""

    def __init__(self) -> None:
        self.is_private = True
        self.status = 200
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, str] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply({"id": REPO, "private": hub.is_private, "sha": "0" * 40, "tags": [], "siblings": []})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                self._reply(hub.answer(self.path, body, self.server.server_address[1]))

            def _reply(self, content: dict[str, Any]) -> None:
                text = json.dumps(content).encode()
                self.send_response(hub.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: str, port: int) -> dict[str, Any]:
        if path.endswith("/repos/create"):
            self.created.append(json.loads(body))
            return {"url": f"http://127.0.0.1:{port}/datasets/{REPO}"}
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            regular = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return {"files": regular}
        if "/commit/" in path:
            for line in body.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    self.files[operation["value"]["path"]] = operation["value"]["content"]
            return {
                "commitUrl": f"http://127.0.0.1:{port}/datasets/{REPO}/commit/1",
                "commitOid": "1" * 40,
                "success": True,
            }
        return {}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()
    thread = threading.Thread(target=made.server.serve_forever, args=[0.05])
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: HfApi(endpoint=made.url, token="hf_test"))
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.mark.parametrize(("flags", "is_private"), [((), True), (("--public",), False)])
def test_the_folder_is_uploaded_and_a_new_repository_is_private(
    flags: tuple[str, ...],
    is_private: bool,
    hub: Hub,
    tmp_path: Path,
    in_process_workers: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.is_private = is_private
    # The user has other files in the folder.
    (tmp_path / "out" / "data").mkdir(parents=True)
    for name in ("notes.txt", "data/private.parquet"):
        (tmp_path / "out" / name).write_text("not a part of the dataset")
    wanted = ["--items", "3", "--tasks", "gcd", "--complexity", "none", "--to", str(tmp_path / "out")]
    assert export.main([*wanted, "--push-to-hub", REPO, *flags]) == 0
    [created] = hub.created
    assert (created["type"], created["visibility"]) == ("dataset", "private" if is_private else "public")
    assert hub.files.keys() == {"README.md", "data/train.parquet"}
    assert f"Uploaded to {hub.url}/datasets/{REPO}" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--cold-start", "3", "--format", "dpo"]])
def test_no_repository_is_made_for_options_that_cannot_work(options: list[str], hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="PATH"):
        export.main([*options, "--to", str(tmp_path / "out"), "--push-to-hub", REPO])
    assert not hub.created


def test_a_public_repository_needs_the_flag_before_any_item_is_made(hub: Hub, tmp_path: Path) -> None:
    hub.is_private = False
    with pytest.raises(EnvironmentSetupError, match=r"someone/items is public. Add --public"):
        export.main(["--items", "3", "--to", str(tmp_path / "out"), "--push-to-hub", REPO])
    assert not hub.files and not (tmp_path / "out" / "README.md").exists()


@pytest.mark.parametrize(("status", "reason"), [(401, "401"), (403, "403"), (404, "404")])
def test_a_refused_request_is_one_line(status: int, reason: str, hub: Hub) -> None:
    hub.status = status
    with pytest.raises(EnvironmentSetupError, match=rf"--push-to-hub someone/items: .*{reason}.*your token") as error:
        dataset_folder.Upload(REPO, is_public=False)
    assert "\n" not in str(error.value)


def test_a_failed_upload_says_how_to_upload_the_complete_folder(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("card")
    upload = dataset_folder.Upload(REPO, is_public=False)
    hub.status = 403
    with pytest.raises(EnvironmentSetupError, match=rf"hf upload {REPO} {tmp_path} --repo-type dataset") as error:
        upload.send(tmp_path)
    assert "\n" not in str(error.value)


def test_a_hub_that_cannot_be_reached_and_a_wrong_name_are_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"Repo id must be .*Check the name"):
        dataset_folder.Upload("a/b/c", is_public=False)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: HfApi(endpoint="http://127.0.0.1:9", token="hf_test"))
    with pytest.raises(EnvironmentSetupError, match=r"refused.*the network") as error:
        dataset_folder.Upload(REPO, is_public=False)
    assert "\n" not in str(error.value)
