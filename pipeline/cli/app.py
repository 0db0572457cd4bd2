"""Assemble the verbs, and determine a command's exit status."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App, CycloptsError, Group

from pipeline.cli.options import ADVANCED, fill_in
from pipeline.cli.predict import ensemble, evaluate, explain, export, predict, serve
from pipeline.cli.runs import doctor, du, runs_app, store_app
from pipeline.cli.tasks import tasks
from pipeline.cli.train import compare, demo, extract, fuse, pool, pretrain, prune, report, studies
from pipeline.system.errors import PipelineError, machine_errors
from pipeline.system.process import is_loss_of_another
from pipeline.system.streams import print_error
from pipeline.system.version import VERSION

app = App(
    name="python -m pipeline",
    help="Train an adapter per task on one frozen BERT, fuse them for a target task, and compare with fine-tuning.",
    version=VERSION,
    help_flags=("--help", "-h", "--help-all"),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
    config=fill_in,
)
PROGRAM = "adapter-fusion"
"""The program name for shell completion, because shells complete programs and not Python modules."""
_EXAMPLES = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script with which a shell completes verbs, options and values of the command adapter-fusion.

    Shells do not complete python -m pipeline: type adapter-fusion, which is the same program. When a shell starts, it
    reads the script from ~/.local/share/bash-completion/completions/adapter-fusion (bash), ~/.zfunc/_adapter-fusion
    (zsh) or ~/.config/fish/completions/adapter-fusion.fish (fish).

    Args:
        shell: The shell.
    """
    print(app.generate_completion(prog_name=PROGRAM, shell=shell))


def _finish_help(verb: App, words: str) -> None:
    """Let the help of a verb, and of those below it, end with its examples, and wrap its lines anew."""
    examples = re.findall(rf"^{words}\b.*", _EXAMPLES, re.MULTILINE)
    verb.help_epilogue = "\n".join(["For example:", *(f"  {app.name[0]} {example}" for example in examples)])
    verb.help_flags = app.help_flags
    verb["--help"].show = False
    if verb.default_command is not None:  # cyclopts would keep the line breaks of the docstring
        text = verb.default_command.__doc__ or ""
        verb.default_command.__doc__ = re.sub(r"(?<=\S)\n {4}( {8})?(?=\S)", " ", text)
    for name in verb:
        if not name.startswith("-"):
            _finish_help(verb[name], f"{words} {name}")


_GROUPS = {
    "Start": (tasks, extract, evaluate, predict, demo),
    "Use": (explain, serve, export),
    "Research": (fuse, compare, report, studies, pool, ensemble, prune, pretrain),
    "Maintain": (runs_app, store_app, du, doctor, completion),
    "Help": (),
}
for title, verbs in _GROUPS.items():
    group = Group.create_ordered(title)
    for rank, verb in enumerate(verbs):
        app.command(verb)
        name = verb.name[0] if isinstance(verb, App) else verb.__name__
        app[name].group, app[name].sort_key = group, rank
        _finish_help(app[name], name)
app["--help"].group = app["--version"].group = group
app["--help"].help = "Show this page, or that of a COMMAND. --help-all shows all options."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 the user can fix it. An exception that escapes is a bug."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        for argument in arguments:  # libraries refuse null bytes and invalid UTF-8
            if "\0" in argument or any("\ud800" <= letter <= "\udfff" for letter in argument):
                raise PipelineError(f"argument {argument!a}: not UTF-8 text: rename the file or folder")
        ADVANCED.in_full = "--help-all" in arguments
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
