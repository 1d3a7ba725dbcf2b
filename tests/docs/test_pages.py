"""README and docs keep up with the code."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reasoning_gym_environment
from reasoning_gym_environment.atropos.flags import FIRST
from testing.inference_server import ThreadedMockServer
from testing.readme import COMMANDS_WITH_OUTPUT, README, is_printed
from testing.support import child_environment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted(DOCS.glob("*.md")),
]


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_reference.py"))


def test_the_reference_is_what_the_settings_and_the_help_of_the_commands_say(generator: dict[str, Any]) -> None:
    # If this fails: python docs/make_reference.py
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert page == generator["page"]()
    assert "inside &lt;answer>&lt;/answer>" in page, "a browser hides tags"


def test_the_packaged_names_are_those_of_the_settings_and_tasks(generator: dict[str, Any]) -> None:
    # If this fails: python docs/make_reference.py
    assert generator["NAMES"].read_text(encoding="utf-8") == generator["names"]()


def test_every_setting_is_there_once_under_a_heading(generator: dict[str, Any]) -> None:
    from reasoning_gym_environment.settings.environment import ReasoningGymEnvConfig

    rows = re.findall(r"^\| `(\w+)` \|", generator["page"]().split("## Inference servers")[0], re.MULTILINE)
    unused = set(generator["UNUSED"])
    assert sorted(rows) == sorted(ReasoningGymEnvConfig.model_fields.keys() - unused)


def test_the_descriptions_of_the_settings_of_atropos_are_ours() -> None:
    from reasoning_gym_environment.settings import environment

    pairs = (
        (environment.ReasoningGymEnvConfig, environment.BaseEnvConfig),
        (environment.Server, environment.APIServerConfig),
    )
    for ours, theirs in pairs:
        for name, field in theirs.model_fields.items():
            assert name in environment.UNUSED or ours.model_fields[name].description != field.description, name
            assert ours.model_fields[name].default == field.default, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_and_its_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, source in re.findall(r'\]\(((?!http)[^)#]+)\)|src="([^"]+)"', text):
        assert (page.parent / (link or source)).exists(), link or source
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= {*targets}


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(python_blocks(page))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_in_a_page_is_valid_and_what_it_imports_from_us_exists(block: str) -> None:
    # Some blocks are parts of a coroutine.
    compile(block, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == reasoning_gym_environment.__name__:
            for alias in node.names:
                assert is_defined(str(node.module), alias.name), f"{node.module}.{alias.name}"


def is_defined(module: str, name: str) -> bool:
    """Whether the package or the text of the module has this name. Some modules import libraries that tests lack."""
    if module == reasoning_gym_environment.__name__:
        return hasattr(reasoning_gym_environment, name)
    text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    defines = rf"^(def|class) {name}\b"
    imports = rf"^from \S+ import (\([^)]*|[^\n(]*)\b{name}\b"
    return re.search(f"{defines}|{imports}", text, re.MULTILINE) is not None


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    blocks = python_blocks(ROOT / page)
    assert blocks
    # The reader is in the checkout.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


# --- the README: its settings, its commands, and what they print


def test_the_settings_of_the_readme_are_those_that_the_help_of_serve_shows() -> None:
    [table] = re.findall(r"^\| setting \| advice \|\n(.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    rows = [row.split("|")[1] for row in table.splitlines()]
    assert tuple(re.findall(r"`((?:env|openai)\.\w+)`", " ".join(rows))) == FIRST["serve"]


@pytest.mark.slow
@pytest.mark.parametrize(("commands", "output"), COMMANDS_WITH_OUTPUT, ids=["evaluate", "process"])
def test_a_command_of_the_readme_prints_what_stands_below_it(
    commands: str, output: str, tmp_path: Path, byte_tokenizer: Any
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = child_environment(PATH=path, API_KEY="secret", WANDB_MODE="offline")
    # The questions of all tasks take minutes.
    script = commands.replace("--tasks all", "--tasks simple_equations,spell_backward --per-task 2")
    script = script.replace("--env.complexity_mode random", "--tasks chain_sum --env.complexity_mode 0")
    with ThreadedMockServer(lambda prompt: "<answer>5</answer>", byte_tokenizer) as server:
        script = script.replace("https://api.example.com/v1", server.base_url)
        done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in output.splitlines():
        assert is_printed(line, done.stdout + done.stderr), (line, done.stdout, done.stderr)
