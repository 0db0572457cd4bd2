"""Destinations of an export: its folder, and a repository on the Hugging Face Hub.

Imports no model, so that mistakes are reported before the libraries load.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id

from pipeline.runs.kept_models import find_model
from pipeline.system.errors import PipelineError, shortened, writing
from pipeline.system.reading import read_json
from stages.export.trained import TASK_FILE, files_in


def check(task: str, using: str, folder: Path, push_to: str | None, store: Path, reports: Path) -> None:
    """Find mistakes in the arguments of :func:`stages.export.export`; raises as that does."""
    if push_to is not None:
        try:
            validate_repo_id(push_to)
        except HFValidationError as error:
            raise PipelineError(f"--push-to-hub {shortened(push_to)}: {error}") from None
        if push_to.count("/") != 1:
            raise PipelineError(f"--push-to-hub {push_to}: write OWNER/NAME, with your name or your organisation's")
    find_model(task, using, store, reports)
    check_place(folder)


def check_place(folder: Path) -> None:
    """Refuse to replace a folder with files that no export wrote, such as notes or a repository's ``.git``."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise PipelineError(f"--output {folder}: this is a file: name a folder")
        earlier = list[str]()
        with suppress(PipelineError):  # missing, or not written by an export
            earlier = files_in(read_json(folder / TASK_FILE, ""))
        if (other := next((name for name in names_in(folder) if name not in earlier), None)) is not None:
            raise PipelineError(
                f"--output {folder}: holds {shortened(other)}, which no export wrote and a new one would delete: name a"
                " new folder"
            )


def names_in(folder: Path) -> Iterator[str]:
    """All files in ``folder`` at any depth, except Python's caches."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in name.parts:
            yield name.as_posix()


def address_of(name: str) -> str:
    """The repository's web address."""
    return f"{constants.ENDPOINT}/{name}"


def push(folder: Path, name: str) -> str:
    """Upload an export to the repository ``name``, creating a private one if needed; returns its address.

    The same commit deletes files of an earlier export that this one lacks; other files stay.

    Raises:
        PipelineError: there is no token or write permission, or the Hub cannot be reached.
    """
    api = HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        written = set(names_in(folder))
        outdated = [escape(file) for file in _earlier_files(name) if file not in written]
        message = "Upload an exported model"
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns=outdated or None)
    except LocalTokenNotFoundError:
        raise PipelineError(f"--push-to-hub {name}: no token: log in first (hf auth login), or set HF_TOKEN") from None
    except HfHubHTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        advice = {401: "log in first (hf auth login)", 403: "the token has no right to write there"}.get(status, "")
        raise PipelineError(f"--push-to-hub {name}: the Hub refused it ({status}): {advice or error}") from error
    except OSError as error:  # requests' connection errors, and huggingface_hub's offline mode
        raise PipelineError(
            f"--push-to-hub {name}: the Hub cannot be reached ({type(error).__name__}): connect, or unset"
            " HF_HUB_OFFLINE. The export is in its folder"
        ) from error
    return str(address)


def _earlier_files(name: str) -> list[str]:
    """The files of the export in the repository; empty if it has none."""
    answer = get_session().get(
        hf_hub_url(name, TASK_FILE), headers=build_hf_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
    )
    try:
        hf_raise_for_status(answer)
        return files_in(json.loads(answer.content))
    except (EntryNotFoundError, ValueError):  # missing, or not written by an export
        return []
