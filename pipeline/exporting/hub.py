"""Publish an export on the Hugging Face Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id

from pipeline.system.errors import PipelineError, shortened


def check_name(name: str) -> None:
    """Raise a :class:`PipelineError` unless ``name`` can be a repository's, OWNER/NAME."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise PipelineError(f"--push-to-hub {shortened(name)}: {error}") from None
    if name.count("/") != 1:
        raise PipelineError(f"--push-to-hub {name}: write OWNER/NAME, with your name or your organisation's")


def files_of(folder: Path) -> list[tuple[str, int]]:
    """The files of an export with their bytes, as they would be named in a repository."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [(file.relative_to(folder).as_posix(), file.stat().st_size) for file in files]


def address_of(name: str) -> str:
    """Where people see the repository."""
    return f"{constants.ENDPOINT}/{name}"


def push(folder: Path, name: str) -> str:
    """Upload an export into the repository ``name``, which is made private if there is none; returns its address.

    Raises:
        PipelineError: no token, no right to write there, or the Hub cannot be reached.
    """
    api = HfApi()
    with _hub(name):
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload an exported model")
    return str(address)


@contextmanager
def _hub(name: str) -> Iterator[None]:
    try:
        yield
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
