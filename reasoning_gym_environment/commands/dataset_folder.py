"""A folder that is published as a dataset: its files, its card, its upload to the Hugging Face hub.

A command that ends early leaves no part of a dataset: `new_folder` moves the files to their place at the end.
`Upload` checks the token and the visibility of the repository before the command starts to make rows, and uploads the
files when they are complete. A new repository is private, unless the user passes --public.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from ..errors import EnvironmentSetupError
from ..utils.terminal import check_folder

CARD = Path("README.md")
TEMPLATES = Path(__file__).resolve().parent.parent / "report" / "templates"


UNFINISHED = ".unfinished"
"""Name of the folder, in the folder of a dataset, for the files of a command that is running or was killed."""


@contextlib.contextmanager
def new_folder(folder: Path, *names: str | Path) -> Iterator[Path]:
    """A folder to write the files of a dataset to. At the end they move to `folder`, the card last.

    If the command ends early, the files are removed, and `folder` too if it is new. If the command is killed, the same
    command replaces them.

    Raises EnvironmentSetupError if `folder` cannot be written, or has a card or one of the files `names` already.
    """
    if any((folder / name).exists() for name in (CARD, *names)):
        raise EnvironmentSetupError(f"{folder} holds a dataset already: name a new folder with --to.")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        check_folder("--to", unfinished)
        yield unfinished
        files = [path for path in unfinished.rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == CARD.name):
            place = folder / file.relative_to(unfinished)
            place.parent.mkdir(exist_ok=True)
            file.replace(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        for path in created:
            # A folder with files is kept.
            with contextlib.suppress(OSError):
                path.rmdir()


def write_card(folder: Path, template_name: str, **values: Any) -> None:
    """Write the card of a folder from a template of `report/templates`."""
    text = (TEMPLATES / template_name).read_text(encoding="utf-8")
    template = jinja2.Template(text, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    text = template.render(**values)
    # The name of a task or a model may hold half of a surrogate pair, which cannot be encoded.
    (folder / CARD).write_bytes(text.encode("utf-8", "replace"))


class Upload:
    """The upload of a dataset to a repository, such as "name/my-items".

    The constructor makes the repository if it does not exist. Raises EnvironmentSetupError, in one line, if the hub
    refuses a request or cannot be reached, and if the repository is public and `is_public` is False.
    """

    def __init__(self, repository: str, *, is_public: bool) -> None:
        # The hub's client is an optional extra.
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError

        # The client raises OSError for refused requests, ValueError for names, and RuntimeError for uploads of files.
        self._errors = (OSError, ValueError, RuntimeError, HTTPError)
        self._repository = repository
        self._api = HfApi()
        try:
            self._api.create_repo(repository, repo_type="dataset", private=not is_public, exist_ok=True)
            found = self._api.repo_info(repository, repo_type="dataset")
        except self._errors as error:
            raise self._failed(error, "Check the name, your token (`hf auth login`) and the network.") from error
        if not found.private and not is_public:
            raise EnvironmentSetupError(
                f"--push-to-hub: expected a private repository, but {repository} is public. Add --public, or name "
                "another repository."
            )

    def send(self, folder: Path, *names: str | Path) -> str:
        """Upload the card and the files `names` of the folder, and return the address of the dataset.

        The folder may have other files of the user.
        """
        try:
            self._api.upload_folder(
                repo_id=self._repository,
                folder_path=folder,
                allow_patterns=[str(name) for name in (CARD, *names)],
                repo_type="dataset",
                commit_message="Upload a dataset of reasoning_gym_environment",
            )
        except self._errors as error:
            command = f"hf upload {self._repository} {folder} --repo-type dataset"
            raise self._failed(error, f"The folder is complete. Upload it with: {command}") from error
        return f"{self._api.endpoint}/datasets/{self._repository}"

    def _failed(self, error: Exception, remedy: str) -> EnvironmentSetupError:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].rstrip(".")
        return EnvironmentSetupError(f"--push-to-hub {self._repository}: {reason}. {remedy}")
