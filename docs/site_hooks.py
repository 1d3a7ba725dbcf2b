"""Hooks of MkDocs for the documentation site, which `make docs` builds. mkdocs.yml names this file.

The pages have two homes: a git host, which shows every file of the repository, and the site, which shows only `docs/`.
The hooks add README, CONTRIBUTING and CHANGELOG to the site, with README as its first page, and rewrite the links
between `docs/` and the rest of the repository. A link whose text is the name of a file gets the title of its page. The
hooks also add the pages of the API reference, which mkdocstrings fills from the docstrings.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import reasoning_gym_environment as package

ROOT = Path(__file__).resolve().parents[1]

RENAMED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository that are pages of the site under another name -> the names of these pages."""

API_TITLES = {
    "api": "Tasks, streams and grades",
    "env": "The environment for Atropos",
    "settings.environment": "Settings",
    "inference.prompts": "Prompts",
    "rows": "Rows, and the store of levels",
    "recipes": "Recipes",
    "integrations.trl": "TRL",
    "integrations.verifiers": "verifiers",
    "integrations.verl": "verl",
    "integrations.skyrl": "SkyRL",
    "records": "Records",
    "evaluation.results": "Evaluation results",
    "errors": "Errors",
}
"""Module -> title of its page in the API reference, in the order of the navigation."""

LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
SOURCE = re.compile(r'(?<=src=")(?P<target>[^":]+)(?=")')
CODE_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LIST_AFTER_TEXT = re.compile(r"^((?![*-] |\d+\. |\s).+\n)(?=([*-]|\d+\.) )", re.MULTILINE)
INDENTATION = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the API reference to the navigation."""
    config.nav.append({"API reference": [api_uri(module) for module in API_TITLES]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of `docs/`, or have another name there."""
    for name, page in RENAMED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for module in API_TITLES:
        files.append(File.generated(config, api_uri(module), content=api_page(module)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the text of a page for the site, except its blocks of code."""
    if page.file.abs_src_path is None:
        return markdown
    source = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    pieces = CODE_BLOCK.split(markdown)
    pieces[::2] = [for_the_site(text, source) for text in pieces[::2]]
    return "".join(pieces)


def api_uri(module: str) -> str:
    return f"api/{module.rpartition('.')[2]}.md"


def api_page(module: str) -> str:
    """The page of a module: its public names if the package exports names of it, otherwise the whole module."""
    home = f"{package.__name__}.{module}"
    names = package._NAMES.get(module)
    if names is None:
        return f"# {API_TITLES[module]}\n\n::: {home}\n"
    imports = "\n".join(f"from {package.__name__} import {name}" for name in names)
    entries = [f"::: {home}.{name}\n" for name in names]
    return "\n".join([f"# {API_TITLES[module]}\n", f"```python\n{imports}\n```\n", *entries])


def for_the_site(text: str, source: str) -> str:
    """Text of the file `source` of the repository, with links for the site.

    Python-Markdown needs more than git hosts do: an empty line before a list, and four spaces before what belongs to an
    item of a list. Both are added here.
    """
    text = LIST_AFTER_TEXT.sub(r"\1\n", text)
    text = INDENTATION.sub("    ", text)
    text = LINK.sub(lambda link: rewritten_link(link, source), text)
    return SOURCE.sub(lambda image: target_on_site(image["target"], source) or image[0], text)


def rewritten_link(link: re.Match[str], source: str) -> str:
    """A link for the site, or the path of the target in code font if the target is a file that the site does not have.

    A link to a missing file stays as it is, so that MkDocs reports it.
    """
    target = target_on_site(link["target"], source)
    if target is not None:
        text = link["text"]
        if text.endswith(".md"):
            text = title_of(ROOT / in_repository(link["target"], source))
        return f"[{text}]({target}{link['anchor'] or ''})"
    path = in_repository(link["target"], source)
    if not (ROOT / path).exists():
        return link[0]
    if "`" in link["text"] or link["text"] == path:
        return f"`{path}`"
    return f"{link['text']} (`{path}`)"


def title_of(path: Path) -> str:
    """The first heading of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def target_on_site(target: str, source: str) -> str | None:
    """The link from the page of `source` to the page or image that `target` names, or None if the site has neither."""
    path = in_repository(target, source)
    goal = site_path(path)
    if goal is None or not (ROOT / path).is_file():
        return None
    page = site_path(source) or source
    return posixpath.relpath(goal, posixpath.dirname(page) or ".")


def in_repository(target: str, source: str) -> str:
    """The path from the root of the repository of what a link in the file `source` names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def site_path(path: str) -> str | None:
    """Where the site has a file of the repository, or None."""
    if path in RENAMED:
        return RENAMED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None
