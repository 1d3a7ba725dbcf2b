"""Imports point downward: what each module may import, by layer, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "reasoning_gym_environment"
NAME = PACKAGE.name

LAYERS = {
    0: {"records", "errors", "seeding", "repeated", "outages", "deadlines", "background"},
    1: {
        "library",
        "selectors",
        "catalog",
        "task_overrides",
        "server_choice",
        "difficulty",
        "curriculum",
        "garbage_floors",
        "signal_bandit",
        "students",
        "task_choice",
        "funnel",
        "breakdown",
        "observed",
        "prompts",
        "extraction",
        "rewards",
        "reward_parts",
        "estimates",
        "published",
        "rollout_writer",
        "rollout_records",
        "rollout_dumps",
        "trajectory_api",
        "outbox",
        "inference_health",
        "run_identity",
        "metrics",
        "checkpoint",
        "output_paths",
        "normalization",
        "budgets",
        "plans",
        "registration",
        "drawing",
        "part_recovery",
        "audited",
        "task_facts",
        "verifiers",
        "verifier_checks",
        "verifier_probes",
        "positive_controls",
        "exact_arithmetic",
        "formulas",
        "workers",
        "workers.channel",
        "workers.dataset_cache",
        "workers.standards",
        "workers.child_process",
        "workers.generation",
        "workers.generator_process",
        "workers.grading",
        "workers.imports",
        "workers.expressions",
        "workers.grammar",
        "workers.group_runner",
        "workers.guard",
        "workers.hardening",
        "workers.landlock",
        "workers.protocol",
        "workers.revival",
        "workers.sandbox_grader",
        "workers.scan",
        "workers.seccomp",
        "workers.worker_process",
        "workers.zygote",
    },
    2: {
        "levels",
        "choosers",
        "sampler",
        "problem_dataset",
        "scoring",
        "inference",
        "groups",
        "eval_set",
        "evaluation",
        "eval_results",
        "rollout_table",
    },
    3: {
        "config",
        "defaults",
        "trl_server",
        "preflight",
        "lifecycle",
        "group_page",
        "processing",
        "command_line",
        "api_keys",
        "command_checks",
        "command_help",
        "argument_types",
        "flags",
        "terminal",
        "api_link",
        "resuming",
        "steps",
        "assembly",
        "served_tasks",
        "env_shell",
        "eval_tables",
        "env",
        "byte_tokenizer",
        "mock_payloads",
        "mock_server",
        "cli",
        "__main__",
        "reasoning_gym_environment",
        "dump_scan",
        "dump_summary",
        "task_table",
        "preview",
        "audit",
        "audit.findings",
        "audit.main",
        "audit.measure",
        "audit.probes",
        "audit.tables",
        "reports",
        "reports.charts",
        "reports.comparison",
        "reports.load",
        "reports.main",
        "reports.page",
        "reports.rollouts",
        "reports.sections",
        "demo",
        "demo.environment",
        "demo.events",
        "demo.main",
        "demo.processes",
        "demo.student",
        "demo.tally",
        "demo.view",
    },
}
LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}

SIBLINGS_FOR_ALL = {1: {"library", "selectors"}, 3: LAYERS[3]}
"""What every module of a layer may import of its own layer."""

SIBLINGS = {
    "workers.standards": {"normalization", "verifiers"},
    "verifiers": {"positive_controls", "verifier_checks", "verifier_probes"},
    "verifier_checks": {"exact_arithmetic", "formulas", "workers", "workers.expressions", "workers.grammar"},
    "exact_arithmetic": {"workers", "workers.grammar"},
    "positive_controls": {"formulas"},
    "scoring": set(),
    "inference": set(),
    "task_choice": {"signal_bandit"},
    "catalog": {"task_overrides"},
    "breakdown": {"task_choice"},
    "reward_parts": {"rewards"},
    "budgets": {"difficulty"},
    "drawing": {"budgets", "difficulty"},
    "rollout_writer": {"part_recovery", "rollout_records"},
    "rollout_dumps": {"rollout_writer"},
    "outbox": {"trajectory_api"},
    "registration": {"checkpoint"},
    "levels": set(),
    "choosers": {"levels", "sampler"},
    "sampler": set(),
    "groups": {"problem_dataset"},
    "problem_dataset": set(),
    "eval_set": {"sampler"},
    "evaluation": {"eval_set", "inference", "scoring"},
    "eval_results": set(),
    "rollout_table": set(),
}
"""Further imports within a layer, by importing module: exactly what there is."""

INWARD = {
    "inference": {"prompts", "rewards", "server_choice"},
    "scoring": {"extraction", "workers"},
}
"""Layer 2 composes few things: what these import of layer 1, exactly."""

MAY_IMPORT_CONFIG = {"defaults", "env", "env_shell", "assembly", "served_tasks", "preflight"}
"""Beside the demo. Everything else takes plain keyword arguments."""

TOUCH_SYS_PATH = {"library", "reasoning_gym_environment", "workers.imports", "workers.zygote"}


def module_name(path: Path) -> str:
    """`workers/grading.py` -> `workers.grading`, `workers/__init__.py` -> `workers`, the root -> ``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in SOURCES.items()}
MODULES = sorted(SOURCES.keys() - {""})


def imported(module: str) -> set[str]:
    """Modules of ours that `module` imports anywhere in its source, except for type checking only."""
    is_package = SOURCES[module].name == "__init__.py"
    anchor = module.split(".") if is_package and module else module.split(".")[:-1]
    found: set[str] = set()
    for node in _runtime_nodes(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {name.name.removeprefix(f"{NAME}.") for name in node.names if name.name.startswith(f"{NAME}.")}
        elif isinstance(node, ast.ImportFrom):
            found |= _from_import(node, anchor)
    return found - {module}


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        nodes += [child, *_runtime_nodes(child)]
    return nodes


def _from_import(node: ast.ImportFrom, anchor: list[str]) -> set[str]:
    if node.level:
        base = anchor[: len(anchor) - (node.level - 1)] + (node.module or "").split(".")
    elif (node.module or "").split(".")[0] == NAME:
        base = (node.module or "").split(".")[1:]
    else:
        return set()
    target = ".".join(part for part in base if part)
    below = {f"{target}.{name.name}".lstrip(".") for name in node.names}
    return (below | {target}) & (SOURCES.keys() - {""})


def test_every_module_has_its_place_in_one_layer() -> None:
    assert sum(map(len, LAYERS.values())) == len(LAYER_OF), "a module stands in two layers"
    unknown = sorted(set(MODULES) - LAYER_OF.keys())
    assert not unknown, f"give these modules a layer here: {unknown}"
    assert not sorted(LAYER_OF.keys() - set(MODULES)), "these modules are gone"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module: str) -> None:
    layer = LAYER_OF[module]
    allowed = {name for name, other in LAYER_OF.items() if other < layer}
    allowed |= SIBLINGS_FOR_ALL.get(layer, set()) | SIBLINGS.get(module, set())
    if module.split(".")[0] in ("workers", "demo", "audit", "reports"):
        allowed |= {name for name in LAYER_OF if name.split(".")[0] == module.split(".")[0]}
    wrong = sorted(imported(module) - allowed)
    assert not wrong, f"{module} (layer {layer}) may not import {wrong}"


@pytest.mark.parametrize("module", sorted(LAYERS[2]))
def test_sibling_imports_of_layer_2_are_those_written_down(module: str) -> None:
    assert imported(module) & LAYERS[2] == SIBLINGS[module]


@pytest.mark.parametrize("module", sorted(INWARD))
def test_inference_and_scoring_know_no_more_than_they_need(module: str) -> None:
    assert imported(module) & LAYERS[1] == INWARD[module]


@pytest.mark.parametrize("module", MODULES)
def test_only_the_shell_reads_the_config(module: str) -> None:
    if "config" in imported(module):
        assert module in MAY_IMPORT_CONFIG or module.split(".")[0] == "demo"


def test_the_environment_is_imported_only_where_a_person_starts_it() -> None:
    importers = {module for module in MODULES if "env" in imported(module)}
    assert importers <= {"cli", "demo.environment", "processing"}
    assert "env" not in imported("processing")


@pytest.mark.parametrize("module", MODULES)
def test_only_the_library_and_the_launcher_touch_sys_path(module: str) -> None:
    touches = any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path" for node in ast.walk(TREES[module])
    )
    touches |= any(
        isinstance(node, ast.ImportFrom) and node.module == "sys" and any(n.name == "path" for n in node.names)
        for node in ast.walk(TREES[module])
    )
    assert touches == (module in TOUCH_SYS_PATH)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_every_module_opens_with_a_docstring(module: str) -> None:
    assert ast.get_docstring(TREES[module])


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_within_the_package_are_relative(module: str) -> None:
    absolute = [
        ast.unparse(node)
        for node in ast.walk(TREES[module])
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == NAME)
        or (isinstance(node, ast.Import) and any(name.name.split(".")[0] == NAME for name in node.names))
    ]
    # Run as a script, the launcher has no package to be relative to.
    assert absolute == ([f"from {NAME}.cli import main"] if module == "reasoning_gym_environment" else [])


def test_the_check_itself_sees_every_form_of_import() -> None:
    assert imported("workers") == {"workers.grading"}
    assert {"library", "errors", "workers.channel"} <= imported("workers.generator_process")
    assert {"env", "demo", "preview"} <= imported("cli")
    assert imported("") == set()
