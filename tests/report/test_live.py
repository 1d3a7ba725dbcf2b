"""`report --live`: a page that is made again when its files change, for this machine only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.report import live
from reasoning_gym_environment.report.live import LivePage, serve, version_of
from reasoning_gym_environment.report.main import main
from testing.report_samples import write_dump


@pytest.fixture
def made() -> list[str]:
    """The pages that were made, in their order."""
    return []


@pytest.fixture
def served(tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server of `tmp_path`. The page is the number of pages so far."""
    monkeypatch.setattr(live, "LEAST_REST_S", 0.0)

    def make() -> str:
        made.append(f"page {len(made)}")
        if not list(tmp_path.iterdir()):
            raise EnvironmentSetupError("no <files> yet")
        return made[-1]

    server = serve(LivePage([tmp_path], make), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def answer(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    reply = connection.getresponse()
    found = reply.status, reply.read().decode()
    connection.close()
    return found


def test_a_page_is_made_again_only_if_its_files_have_changed(served: int, made: list[str], tmp_path: Path) -> None:
    status, waiting = answer(served, "/")
    assert status == 200 and "no &lt;files&gt; yet" in waiting and "connect-src 'self'" in waiting
    before = answer(served, "/version")
    write_dump(tmp_path, groups=4)
    assert answer(served, "/version") != before
    assert answer(served, "/") == answer(served, "/") == (200, "page 1")
    assert len(made) == 2


def test_only_this_machine_gets_an_answer_and_only_the_page(served: int) -> None:
    assert answer(served, "/", host=f"localhost:{served}")[0] == 200
    assert answer(served, "/", host="attacker.example")[0] == 403
    assert answer(served, "/version", host="attacker.example")[0] == 403
    assert answer(served, "/../etc/passwd")[0] == 404


def test_the_version_follows_each_file(tmp_path: Path) -> None:
    versions = {version_of([tmp_path])}
    dump = write_dump(tmp_path, groups=4)
    versions.add(version_of([tmp_path]))
    with dump.open("a", encoding="utf-8") as file:
        file.write("\n")
    versions.add(version_of([tmp_path]))
    (tmp_path / "metrics.json").write_text("{}", encoding="utf-8")
    versions.add(version_of([tmp_path]))
    assert len(versions) == 4


def test_a_port_that_is_taken_is_an_error_with_a_remedy(served: int, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=rf"--port {served}: .* Name another port\."):
        main([str(tmp_path), "--live", "--port", str(served)])
