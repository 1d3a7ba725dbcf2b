"""A release: the sdist and the wheel are complete, and the installed wheel does what the pages promise.

`make release` runs these tests on the packages in dist/, which RELEASE_FOLDER names, and installs the wheel with its
dependencies from the package index. Without RELEASE_FOLDER the tests build the packages, and the fresh environments
find the dependencies in the environments of this checkout, so no network is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.cli import COMMANDS
from testing.inference_server import ThreadedMockServer, free_port
from testing.support import PATIENCE_S, AddingStudent, running, wait_for
from testing.wheel import NAME, ROOT, fresh_environment, libraries_of, run

pytestmark = pytest.mark.slow
RELEASE_FOLDER = os.environ.get("RELEASE_FOLDER", "")
FOLDERS = (".github", "benchmarks", "docs", "examples", "requirements", "testing", "tests", "typings", NAME)
FILES = (
    "AGENTS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "mkdocs.yml",
)
FILES += ("pyproject.toml", "__init__.py", f"{NAME}.py", "CITATION.cff", ".ci/run", "data_dumps/.gitkeep")
FILES += ("requirements.txt",)
JUNK = {"build/lib/" + NAME + "/old.py", "site/index.html", "tests/__pycache__/old.pyc"}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is under version control, for a build writes beside its sources, and junk of a used one."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    for name in JUNK:
        (tree / name).parent.mkdir(parents=True)
        (tree / name).touch()
    return tree


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from the unpacked sdist."""
    if RELEASE_FOLDER:
        return ROOT / RELEASE_FOLDER
    folder = tmp_path_factory.mktemp("built")
    # With isolation it would ask an index for setuptools.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=tree)
    return folder


def test_the_sdist_holds_all_that_is_tracked_and_no_junk(tree: Path, built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert files_of(tree) - held == JUNK


def test_the_wheel_holds_the_package_and_nothing_else(tree: Path, built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {f"{NAME}/{path}" for path in files_of(tree / NAME)}


def test_the_metadata_are_what_package_indexes_accept(built: Path) -> None:
    packages = [next(built.glob("*.whl")), next(built.glob("*.tar.gz"))]
    told = run(sys.executable, "-m", "twine", "check", "--strict", *packages, cwd=built)
    assert told.count("PASSED") == 2, told


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel."""
    home = tmp_path_factory.mktemp("installed") / "environment"
    wheel = next(built.glob("*.whl"))
    if not RELEASE_FOLDER:
        return fresh_environment(home, Path(sys.prefix), wheel, extras="atropos").parent
    run(sys.executable, "-m", "venv", home, cwd=home.parent)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[atropos]", cwd=home)
    return home / "bin"


def test_the_installed_wheel_works_far_from_the_repository(installed: Path, tree: Path, tmp_path: Path) -> None:
    names = f"import {NAME} as package; print(package.__file__, *(getattr(package, name) for name in package.__all__))"
    assert run(installed / "python", "-c", names, cwd=tmp_path).startswith(f"{installed.parent}{os.sep}lib")
    for example in ("grade_answers.py", "training_loop.py"):
        assert run(installed / "python", tree / "examples" / example, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


SERVER = "--openai.server_type openai --openai.base_url {url} --openai.model_name mock"
SMALL = f"{SERVER} --env.include_tasks chain_sum --env.eval_tasks all --env.use_wandb False --env.total_steps 2"
CALLS = {
    "tasks": ("tasks countdown", "countdown (games)"),
    "audit": ("audit --tasks chain_sum --per-level 2", "sound"),
    "process": (f"process {SMALL}", "2 groups are in "),
    "evaluate": (f"evaluate {SMALL}", "Planned: 5 requests"),
    "report": ("report sample_run -o report.html", "report.html"),
    "export": ("export sft sample_run/data_dumps --to exported", "rows of"),
    "export held-out": ("export held-out --tasks chain_sum --to held_out", "5 held-out questions"),
    "levels": ("levels create levels.sqlite --tasks chain_sum --group-size 8", "1 tasks with"),
}
"""A call of each command that ends, and a part of what it prints. `{url}` is the address of an inference server."""
SERVERS = {"serve", "grade-server", "openenv"}
"""These commands do not end by themselves."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder far from the repository, with a small run."""
    folder = tmp_path_factory.mktemp("folder")
    with tarfile.open(ROOT / "docs" / "sample_run.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("command", sorted(SERVERS))
def test_a_command_of_the_wheel_that_does_not_end_prints_its_help(installed: Path, folder: Path, command: str) -> None:
    assert f"usage: reasoning-gym-env {command}" in run(installed / "reasoning-gym-env", command, "--help", cwd=folder)


@pytest.mark.parametrize("name", CALLS)
def test_a_command_of_the_wheel_does_its_work(
    installed: Path, folder: Path, name: str, adding_server: ThreadedMockServer
) -> None:
    call, expected = CALLS[name]
    arguments = call.format(url=adding_server.base_url).split()
    assert expected in run(installed / "reasoning-gym-env", *arguments, cwd=folder, HOME=str(folder))


def test_each_command_has_a_call() -> None:
    assert {name.split()[0] for name in CALLS} | SERVERS == set(COMMANDS)


def test_the_grade_server_of_the_wheel_answers(installed: Path, folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ["grade-server", "--port", "0", "--tasks", "chain_sum"]
    with running(arguments, log, folder, installed / "reasoning-gym-env", PYTHONPATH="") as server:
        wait_for(lambda: "http://127.0.0.1:" in log.read_text(), "the server")
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) in (0, 128 + signal.SIGTERM, -signal.SIGTERM), log.read_text()


# --- the Space for OpenEnv, and the package for the Environments Hub


VALIDATE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from openenv.validation import run_validation
from openenv.validation.types import ProviderCapability

running = SimpleNamespace(base_url=sys.argv[1], inspect=dict, stop=lambda: None)
provider = SimpleNamespace(
    name="process",
    capabilities=frozenset({ProviderCapability.IMAGE_BUILD}),
    supported_network_modes=frozenset({"public"}),
    build=lambda *_: "sha256:" + 64 * "0",
    start=lambda _: running,
)
report = run_validation(Path("space"), provider=provider)
print({result.check_id: result.status.value for result in report.results if result.status.value != "skip"})
"""
"""All of `openenv validate`, with the application in a process where the library would start a container."""


@pytest.mark.libraries
def test_openenv_validates_the_space_and_its_application(built: Path, tmp_path: Path) -> None:
    home = libraries_of(".venv-trl")
    space = tmp_path / "space"
    shutil.copytree(ROOT / "examples" / "openenv", space, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    python = fresh_environment(tmp_path / "environment", home, next(built.glob("*.whl")))
    openenv = [home / "bin" / "openenv", "validate"]
    assert "PASS  static.manifest" in run(*openenv, "space", "--skip-build", cwd=tmp_path)
    structure = "from openenv.cli._cli_utils import validate_env_structure as check; from pathlib import Path; "
    assert "outputs" in run(home / "bin" / "python", "-c", f"{structure}print(check(Path('space')))", cwd=tmp_path)

    port = str(free_port())
    address = f"http://127.0.0.1:{port}"
    arguments = ["-m", "uvicorn", "server.app:app", "--port", port]
    log = tmp_path / "log"
    with running(arguments, log, space, python, PYTHONPATH="", PYTHONDONTWRITEBYTECODE="1", TASKS="chain_sum") as app:
        wait_for(lambda: app.poll() is not None or is_listening(int(port)), "the application")
        assert app.poll() is None, log.read_text()
        assert "Verdict: PASS" in run(*openenv, "--url", address, cwd=tmp_path)
        told = run(home / "bin" / "python", "-c", VALIDATE, address, cwd=tmp_path)
    checks = ("reward_well_formed", "observation_schema", "state_contract", "startup")
    assert {"static.manifest", *(f"runtime.{name}" for name in checks)} == set(json.loads(told.replace("'", '"')))
    assert "fail" not in told and "error" not in told, told


def is_listening(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.libraries
def test_verifiers_finds_the_tasks_in_the_wheel_and_in_the_package_for_the_hub(
    built: Path, tmp_path: Path, byte_tokenizer: Any
) -> None:
    home = libraries_of(".venv-verifiers")
    hub = tmp_path / "hub"
    shutil.copytree(ROOT / "examples" / "environments_hub", hub, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", hub / "dist", hub, cwd=tmp_path)
    wheels = [next(built.glob("*.whl")), next(hub.glob("dist/*.whl"))]
    python = fresh_environment(tmp_path / "environment", home, *wheels)
    place = run(python, "-c", f"import {NAME}; print({NAME}.__file__)", cwd=tmp_path)
    assert place.startswith(str(tmp_path / "environment"))

    vf_eval = [python, "-c", "from verifiers.v1.cli.eval.main import main; main()"]
    private = {"HOME": str(tmp_path), "PRIME_API_KEY": ""}
    with ThreadedMockServer(AddingStudent(wrong_every=0), byte_tokenizer) as server:
        options = f"--model mock --client.base-url {server.base_url} --no-push --no-rich -n 2 -r 1".split()
        for package in ("reasoning-gym-environment", "reasoning-gym-tasks", "someone/reasoning-gym-tasks@0.2.0"):
            folder = tmp_path / package.replace("/", "_")
            folder.mkdir()
            run(*vf_eval, package, "--env.taskset.include-tasks", "chain_sum", *options, cwd=folder, **private)
            [file] = folder.rglob("traces.jsonl")
            traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
            assert [trace["rewards"]["credit"]["score"] for trace in traces] == [1.0, 1.0]
