"""Assemble the verbs, and determine a command's exit status."""

import sys
from collections.abc import Sequence
from typing import Literal

from cyclopts import App, CycloptsError

from pipeline.cli.compare import compare, pool, report, studies
from pipeline.cli.predict import ensemble, evaluate, explain, export, predict, serve
from pipeline.cli.runs import doctor, du, runs_app, store_app
from pipeline.cli.settings_file import fill_in
from pipeline.cli.tasks import tasks
from pipeline.cli.train import demo, extract, fuse, pretrain, prune
from pipeline.system.errors import PipelineError, machine_errors
from pipeline.system.process import is_loss_of_another
from pipeline.system.streams import print_error
from pipeline.system.version import VERSION

app = App(
    name="python -m pipeline",
    help="Train an adapter per task on one frozen BERT, fuse them for a target task, and compare with fine-tuning.",
    version=VERSION,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
    config=fill_in,
)
PROGRAM = "adapter-fusion"
"""The program name for shell completion, because shells complete programs and not Python modules."""


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script for a shell, which completes the verbs and options of the command adapter-fusion.

    Args:
        shell: The shell, which has to read the script when it starts.
    """
    print(app.generate_completion(prog_name=PROGRAM, shell=shell))


for verb in (
    extract,
    fuse,
    prune,
    pretrain,
    compare,
    report,
    pool,
    demo,
    predict,
    evaluate,
    ensemble,
    explain,
    export,
    serve,
    tasks,
    store_app,
    runs_app,
    du,
    doctor,
    completion,
    studies,
):
    app.command(verb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 the user can fix it. An exception that escapes is a bug."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _check_text(arguments)
        with machine_errors():
            try:
                status = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
            finally:
                sys.stdout.flush()  # inside the try block, which handles a closed or full standard output
            return status if isinstance(status, int) else 0
    except PipelineError as error:
        message = str(error)
    except CycloptsError as error:
        message = f"{error} (see --help)"
    except RuntimeError as error:
        if not is_loss_of_another(error):
            raise
        message = "another process of this run has ended. Finished work is kept; run the same command again to resume"
    print_error(message)
    return 2


def _check_text(arguments: Sequence[str]) -> None:
    """Raise a :class:`PipelineError` for arguments with null bytes or invalid UTF-8, which libraries refuse."""
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise PipelineError(f"argument {argument!a}: not UTF-8 text: rename the file or folder")
