"""A folder that is published as a dataset: its card, its upload to the Hugging Face hub.

`Upload` checks the token and the visibility of the repository before the command starts to make rows, and uploads the
folder when it is complete. A new repository is private, unless the user passes --public.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from ..errors import EnvironmentSetupError

CARD = Path("README.md")
TEMPLATES = Path(__file__).resolve().parent.parent / "report" / "templates"


def check_is_new(folder: Path, file: str | Path) -> None:
    """Raise EnvironmentSetupError if the folder has a card or this file already."""
    if (folder / CARD).exists() or (folder / file).exists():
        raise EnvironmentSetupError(f"{folder} holds an export already: name a new folder with --to.")


def write_card(folder: Path, template_name: str, **values: Any) -> None:
    """Write the card of a folder from a template of `report/templates`."""
    text = (TEMPLATES / template_name).read_text(encoding="utf-8")
    template = jinja2.Template(text, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    text = template.render(**values)
    # The name of a task or a model may hold half of a surrogate pair, which cannot be encoded.
    (folder / CARD).write_bytes(text.encode("utf-8", "replace"))


class Upload:
    """The upload of a folder to a dataset repository, such as "name/my-items".

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

    def send(self, folder: Path) -> str:
        """Upload all files of the folder, and return the address of the dataset."""
        try:
            self._api.upload_folder(
                repo_id=self._repository,
                folder_path=folder,
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
