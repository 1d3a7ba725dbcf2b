"""Which small mistakes in the core do the fast tests notice? python benchmarks/mutations.py [--count 60] > found.json

Each mutation is one small change of one line: a comparison turned, a number changed, `and` and `or` swapped, `not`
dropped, an arithmetic operator swapped, a statement removed, or None returned. The script chooses them by `--seed` from
all changes that the syntax trees of FILES allow, writes each into a copy of the repository, and runs the fast tests of
the changed file there. It never changes the working tree.

    file, line, change   the mutation
    result               caught (a test failed), timeout (the tests took too long, which counts as caught) or survived
    share                share of the mutations that were caught

A mutation that survives shows that a test is missing, or it is equivalent: no caller can notice it. A reader must tell.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "reasoning_gym_environment"
FILES = (
    "pipeline.py",
    "items.py",
    "sampling/pending_items.py",
    "sampling/curriculum.py",
    "sampling/levels.py",
    "trainer/checkpoints.py",
    "trainer/transport.py",
    "trainer/run_api.py",
    "scoring/extraction.py",
    "scoring/scorer.py",
    "verification/grade.py",
)
LIFE_OF_A_GROUP = (
    "tests/test_pipeline.py",
    "tests/test_env.py",
    "tests/test_runtime.py",
    "tests/compatibility/test_subclasses.py",
    "tests/atropos/test_serve_in_simulated_time.py",
)
TESTS = {
    "pipeline.py": LIFE_OF_A_GROUP,
    "items.py": LIFE_OF_A_GROUP,
    "sampling/": ("tests/sampling", "tests/test_runtime.py"),
    "trainer/": ("tests/trainer", "tests/atropos/test_serve_in_simulated_time.py"),
    "scoring/": ("tests/scoring",),
    "verification/": ("tests/verification",),
    "inference/": ("tests/inference", "tests/atropos/test_outages_in_simulated_time.py"),
    "telemetry/": ("tests/telemetry",),
    "workers/": ("tests/workers",),
}
"""The tests of a file or a folder of the package. For all other files, all fast tests run."""

COPIED = (PACKAGE, "benchmarks", "data_dumps", "docs", "examples", "requirements", "testing", "tests")
"""The folders of the repository that tests use. Its files are copied, too."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutation:
    """One change. `source` is the whole text of the changed file."""

    file: str
    line: int
    change: str
    source: str


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that do something: no annotations, no decorators, and no f-strings, whose places are unknown."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield child
                yield from nodes_of(child)


def is_removable(node: ast.AST) -> bool:
    """Whether a statement does something that other code may notice. Log lines do not count."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    if isinstance(node, ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(call, ast.Call) and not ast.unparse(call.func).startswith(("log.", "logger.", "logging."))
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break))


def replacements(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may take the place of a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS[type(node.ops[0])]()
        yield ast.unparse(ast.Compare(node.left, [other], node.comparators))
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other_bool, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield f"({ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None"
    elif is_removable(node):
        yield "pass"


def mutations_of(file: str, source: str) -> list[Mutation]:
    """All mutations of one file."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = source.encode()
    found = []
    for node in nodes_of(ast.parse(source)):
        for replacement in replacements(node):
            begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            before = " ".join(text[begin:end].decode().split())
            mutated = (text[:begin] + replacement.encode() + text[end:]).decode()
            found.append(Mutation(file, node.lineno, f"{before} -> {replacement}", mutated))  # type: ignore[attr-defined]
    return found


def tests_of(file: str, root: Path) -> tuple[str, ...]:
    """The existing tests of a file: the tests for the longest part of its path in TESTS, or all tests without one."""
    known = [part for part in TESTS if file.startswith(part)]
    chosen = TESTS[max(known, key=len)] if known else ()
    return tuple(path for path in chosen if (root / path).exists()) or ("tests",)


def run_tests(copy: Path, tests: tuple[str, ...], limit_s: float) -> str:
    """`passed`, `failed` or `timeout`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return "failed" if process.wait(limit_s) else "passed"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def copy_repository(copy: Path) -> None:
    """Write the files and folders that the tests use."""
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))


def check_copy(copy: Path) -> None:
    """Raise SystemExit if Python does not import the package from the copy, for example from an installed wheel."""
    program = f"import {PACKAGE}; print({PACKAGE}.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    found = subprocess.run([sys.executable, "-c", program], cwd=copy, env=environment, capture_output=True, text=True)
    if str(copy) not in found.stdout:
        raise SystemExit(f"Expected Python to import the package from {copy}, found {found.stdout or found.stderr}.")


def usual_time_of(copy: Path, tests: tuple[str, ...]) -> float:
    """How long these tests take without a mutation. Raises SystemExit if they fail, because then all would."""
    began = time.monotonic()
    result = run_tests(copy, tests, 3600.0)
    if result != "passed":
        raise SystemExit(f"Expected {' '.join(tests)} to pass without a mutation, but they ended with: {result}.")
    return time.monotonic() - began


def try_all(chosen: list[Mutation], copy: Path) -> list[dict[str, object]]:
    """What the tests made of each mutation."""
    usual_s: dict[tuple[str, ...], float] = {}
    found: list[dict[str, object]] = []
    for mutation in tqdm(chosen, desc="mutations"):
        tests = tests_of(mutation.file, copy)
        if tests not in usual_s:
            usual_s[tests] = usual_time_of(copy, tests)
        path = copy / PACKAGE / mutation.file
        original = path.read_text(encoding="utf-8")
        path.write_text(mutation.source, encoding="utf-8")
        result = run_tests(copy, tests, 60.0 + 3.0 * usual_s[tests])
        path.write_text(original, encoding="utf-8")
        if result == "passed":
            tqdm.write(f"survived: {mutation.file}:{mutation.line}: {mutation.change}", file=sys.stderr)
        names = {"passed": "survived", "failed": "caught"}
        about = {"file": mutation.file, "line": mutation.line, "change": mutation.change}
        found.append({**about, "result": names.get(result, result)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="mutations to try (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutations (default: 0)")
    parser.add_argument("--file", nargs="+", default=FILES, help="files of the package (default: the core)")
    options = parser.parse_args()
    files = [file for file in options.file if (ROOT / PACKAGE / file).exists()]
    if not files:
        parser.error(f"expected files of {PACKAGE}, found none of {', '.join(options.file)}")
    all_mutations: list[Mutation] = []
    for file in files:
        all_mutations += mutations_of(file, (ROOT / PACKAGE / file).read_text(encoding="utf-8"))
    chosen = Random(options.seed).sample(all_mutations, min(options.count, len(all_mutations)))
    chosen.sort(key=lambda mutation: (files.index(mutation.file), mutation.line))
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        # pytest would take a folder with a name of Python's for a package, because the repository has an __init__.py.
        copy = Path(folder).resolve() / "mutated-copy"
        copy_repository(copy)
        check_copy(copy)
        found = try_all(chosen, copy)
    caught = sum(row["result"] != "survived" for row in found)
    summary = {"possible": len(all_mutations), "tried": len(found), "caught": caught}
    print(json.dumps({**summary, "share": round(caught / max(len(found), 1), 3), "mutations": found}, indent=1))


if __name__ == "__main__":
    main()
