"""The documentation agrees with the code: references, commands, links. ``UPDATE_DOCS=1`` rewrites the references."""

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from difflib import unified_diff
from importlib.metadata import EntryPoint
from itertools import product
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from cyclopts import App, CycloptsError
from cyclopts.argument import Argument
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.cli.app import app, main
from pipeline.data.labels import METRICS_OF
from pipeline.data.tasks import Files, Hub, Task
from pipeline.methods.registry import METHODS, check_fits
from pipeline.settings.kinds import Row
from pipeline.settings.recipe import FLAGS, PARTS, Recipe
from pipeline.settings.study import Curve, Published, Resources, ScoredRows, Study
from pipeline.system.errors import PipelineError
from tests.nano import FAMILIES

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [*PAGES, *sorted(ROOT.glob("*.md")), ROOT / "adapters_store/README.md"]
_HEAD = """# Settings

Every key of a recipe, then those of a study and of a task. "Not set" means: from the task, from the method, or off.
Set a key of a part in its table, or by its flat name; the first keys belong to no part. [Recipes](recipes.md) describes
when to use them.
"""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):  # a separate table, with its own defaults
        return ""
    if field.default is None:
        return "not set"
    return "none" if field.default in ((), {}, "") else str(field.default).lower().replace("|", "\\|")


def _choices(annotation: Any) -> list[str]:
    """The words that a key may have as value, in the code's order."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [word for inner in get_args(annotation) for word in _choices(inner)]


def _about(field: FieldInfo) -> str:
    text = (field.description or "").replace("|", chr(92) + "|")
    choices = _choices(field.annotation)
    told = all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices)
    return text if told else f"{text} ({', '.join(f'`{choice}`' for choice in choices)})"


def _rows(fields: dict[str, FieldInfo], flat: dict[str, str]) -> Iterator[str]:
    for key, field in fields.items():
        names = f"`{key}` | `{flat[key]}`" if flat else f"`{key}`"
        yield f"| {names} | {_default(field)} | {_about(field)} |"


_TABLES: dict[type[BaseModel], tuple[str, str]] = {
    Study: ("Study keys", "The keys of a study's file ([Studies](studies.md) has examples)."),
    Row: ("Row keys", "The table `[rows.ROW]`."),
    ScoredRows: ("Scoring keys", 'The table `[scoring]`; `scoring = "half"` is short for its `rows`.'),
    Curve: ("Curve keys", "The table `[curve]`."),
    Published: (
        "Published numbers",
        "The table `[published]`; `curves` names a `row` and a `task` for each table of epochs.",
    ),
    Task: ("Task keys", "The keys of a task's file ([Your own data](data.md#a-task-by-hand) has an example)."),
    Files: ("File keys", "The table `[files]`, for tables in a folder."),
    Hub: ("Hub keys", "The table `[hub]`, for a data set of the Hugging Face Hub."),
}


def reference() -> str:
    text = [_HEAD, "| key | default | |", "| --- | --- | --- |"]
    text += _rows({key: field for key, field in Recipe.model_fields.items() if key not in PARTS}, {})
    for name, part in PARTS.items():
        flat = {key: flag for flag, (owner, key) in FLAGS.items() if owner == name}
        text += [
            "",
            f"## {name}",
            "",
            *([part.__doc__, ""] if part.__doc__ else []),
            "| key | flat | default | |",
            "| --- | --- | --- | --- |",
        ]
        text += _rows(part.model_fields, flat)
    for model, (title, about) in _TABLES.items():
        text += ["", f"## {title}", "", about, "", "| key | default | |", "| --- | --- | --- |"]
        text += _rows({key: field for key, field in model.model_fields.items() if model is Task or key != "name"}, {})
    text += ["", "## Metrics", "", "What the `metric` of a task may be:", "", "| kind | metrics |", "| --- | --- |"]
    text += [f"| {kind} | {', '.join(f'`{name}`' for name in names)} |" for kind, names in METRICS_OF.items()]
    return "\n".join(text) + "\n"


_COMMANDS = """# Commands

Every command and option. `python -m pipeline COMMAND --help-all` prints the same, and `--help` only names the advanced
options. `adapter-fusion COMMAND` is short for `python -m pipeline COMMAND`, and [shells complete
it](faq.md#how-do-i-complete-commands-in-my-shell). Values in parentheses are defaults.
"""


def _verbs(parent: App, words: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    for name in parent:
        if not name.startswith("-"):
            yield " ".join((*words, name)), parent[name]
            yield from _verbs(parent[name], (*words, name))


def _option(argument: Argument) -> str:
    names = argument.names if argument.index is None else (argument.name.removeprefix("--").upper(),)
    text = " ".join((argument.parameter.help or "").split()).replace("<", "&lt;").replace("|", chr(92) + "|")
    if argument.get_choices() and not all(choice in text for choice in argument.get_choices()):
        text += " One of " + ", ".join(f"`{choice}`" for choice in argument.get_choices()) + "."
    if argument.required:
        text += " **Required.**"
    elif argument.show_default and argument.field_info.default is not False:
        text += f" Default: `{argument.field_info.default}`."
    return f"| {', '.join(f'`{name}`' for name in names)} | {text.strip()} |"


def commands() -> str:
    """One table per group of a verb's options; a table that equals an earlier verb's is a link to that verb."""
    text, first = [_COMMANDS], dict[tuple[str, ...], str]()
    for verb, sub in _verbs(app):
        about = " ".join(sub.help.partition("Args:")[0].split()).replace("<", "&lt;")
        text += [f"{'#' * (2 + verb.count(' '))} {verb}", "", fill(about, 120, break_on_hyphens=False), ""]
        shown = (
            []
            if sub.default_command is None
            else [each for each in sub.assemble_argument_collection(parse_docstring=True) if each.show]
        )
        names = [argument.parameter.group[0].name for argument in shown]
        order = dict.fromkeys(["Parameters", "Advanced", *names])
        for name in order:
            arguments = [argument for argument, own in zip(shown, names, strict=True) if own == name]
            if not arguments:
                continue
            rows = tuple(_option(argument) for argument in arguments)
            title = "" if name == "Parameters" else f"**{name}**"
            if title and first.setdefault(rows, verb) != verb:
                text += [f"{title}: as for [{first[rows]}](#{first[rows].replace(' ', '-')}).", ""]
            else:
                text += [*([title, ""] if title else []), "| option | |", "| --- | --- |", *rows, ""]
        text += [f"    {example}" for example in _examples(sub)] + [""] if sub.default_command else []
    return "\n".join(text)


def _examples(verb: App) -> list[str]:
    """What the help of a verb ends with."""
    assert verb.help_epilogue is not None
    return verb.help_epilogue.replace("\n  ", "\n").split("\n")[1:]


def _help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_help_shows_the_verbs_in_groups_and_of_each_what_most_need(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _help(capsys, monkeypatch, "--help")
    assert re.findall(r"^╭─ (\w+) ", page, re.MULTILINE) == ["Start", "Use", "Research", "Maintain", "Help"]
    listed = re.findall(r"^│ ([a-z]+) ", page, re.MULTILINE)
    assert listed[:4] == ["tasks", "extract", "evaluate", "predict"]
    assert sorted(listed) == sorted(name for name in app if not name.startswith("-"))
    for verb, sub in _verbs(app):
        short = _help(capsys, monkeypatch, *verb.split(), "--help")
        assert short.count("\n") <= 90, f"{verb} --help: more than two screens: mark more options as advanced"
        whole = _help(capsys, monkeypatch, *verb.split(), "--help-all") if "(--help-all)" in short else short
        shown = [] if sub.default_command is None else sub.assemble_argument_collection(parse_docstring=True)
        for name in (argument.name for argument in shown if argument.show):
            assert name in short and re.search(rf"^│.*{name[:20]}", whole, re.MULTILINE), (verb, name)
        assert _examples(sub), f"pipeline/cli/examples.txt lacks {verb}"


def test_the_page_on_machines_has_every_key_of_resources() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs/machines.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [key for key, _ in rows] == list(Resources.model_fields)
    shown = {key: default for key, default in rows if default.isdigit()}
    assert shown == {k: f"{f.default:g}" for k, f in Resources.model_fields.items() if isinstance(f.default, int)}


@pytest.mark.parametrize(
    ("file", "text"), [("settings.md", reference()), ("commands.md", commands())], ids=["settings", "commands"]
)
def test_the_references_say_what_the_code_has(file: str, text: str) -> None:
    page = ROOT / "docs" / file
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text, encoding="utf-8")
    written = page.read_text(encoding="utf-8")
    # Not compared by assert, which truncates its diff before the lines that differ.
    changes = list(unified_diff(written.splitlines(), text.splitlines(), f"docs/{file}", "the code", lineterm="", n=0))
    anew = "UPDATE_DOCS=1 python -m pytest tests/test_docs.py rewrites the page"
    assert not changes, "\n".join([f"{anew}:", *changes])


def _section(page: str, heading: str) -> str:
    """The text under the second-level ``heading`` in a page of docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("kind", METHODS)
def test_every_kind_of_adapter_is_described(kind: str) -> None:
    about = commands().partition("\n## extract\n")[2].partition("| `--adapter` | ")[2].partition("\n")[0]
    assert re.search(rf"\b{kind}: ", about), f"pipeline/cli/train.py: say in the help of --adapter what {kind} is"
    row = re.search(rf"^\| {kind} ", _section("recipes.md", "Adapters"), re.MULTILINE)
    assert row, f"docs/recipes.md, Adapters: add a row for {kind}"
    section = re.search(rf'`adapter\s=\s"{kind}"`', _section("methods.md", "Adapters"))
    assert section, f'docs/methods.md, Adapters: add a section for {kind} that says `adapter = "{kind}"`'


def test_the_page_has_the_kinds_that_a_family_cannot_have() -> None:
    refused: dict[str, list[str]] = {}
    for family, kind in product(FAMILIES, METHODS):
        try:
            check_fits(Recipe(adapter=kind), family)
        except PipelineError as error:
            name = str(error).removeprefix(f"{kind} on a ").partition(":")[0]
            refused.setdefault(name, []).append(kind)
    rows = re.findall(r"^\| (\w+) \| ([\w, -]+) \|", _section("faq.md", "Which backbones can I use?"), re.MULTILINE)
    shown = {family: sorted(kinds.split(", ")) for family, kinds in rows if family != "family"}
    assert shown == {name: sorted(kinds) for name, kinds in refused.items()}, "docs/faq.md: what a family cannot have"


def test_the_page_has_the_kinds_that_adapterhub_loads() -> None:
    (shown,) = re.findall(r"^\| adapter \((.*?)\) \|", (ROOT / "docs/serving.md").read_text("utf-8"), re.MULTILINE)
    loaded = [kind for kind, method in METHODS.items() if not method.stock_lacks]
    assert shown.split(", ") == loaded, "docs/serving.md: the kinds that AdapterHub loads"


def _name(text: Path) -> str:
    return str(text.relative_to(ROOT))


def _shown_commands(text: str) -> Iterator[str]:
    """The arguments of every command of this project in ``text``, up to a comment or a shell operator.

    A verb that a sentence merely names is skipped.
    """
    verbs = {verb for verb, sub in _verbs(app) if sub.default_command is not None}
    for quote, line in re.findall(r"(`?)(?:python -m pipeline|\badapter-fusion) (?=[a-z])([^`\n]+)", text):
        if quote and line in verbs:
            continue
        words = shlex.shlex(line.replace("$seed", "1"), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        taken = []
        for word in words:
            if set(word) <= set("<>;&|"):
                break
            taken.append(word)
        yield shlex.join(taken)


def test_every_command_that_a_page_shows_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # without a settings file
    shown = [(_name(text), command) for text in TEXTS for command in _shown_commands(text.read_text(encoding="utf-8"))]
    problems = []
    for where, command in shown:
        # A lone hyphen is a value (standard input or output), which main() joins to its option.
        arguments = shlex.split(re.sub(r" -(?= |$)", "=-", command))
        try:
            parsed, _, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
            if parsed.__module__.startswith("cyclopts"):  # it prints help
                problems.append(f"{where}: {command}: no such command")
        except (CycloptsError, PipelineError) as error:
            problems.append(f"{where}: {command}: {error}")
    assert not problems
    assert len(shown) > 40


_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", TEXTS, ids=_name)
def test_python_that_a_page_shows_can_be_read(text: Path) -> None:
    for _, language, code in _FENCED.findall(text.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(code)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("text", TEXTS, ids=_name)
def test_every_link_leads_somewhere(text: Path) -> None:
    prose = re.sub(r"^    .*$|`[^`\n]*`", "", _FENCED.sub("", text.read_text(encoding="utf-8")), flags=re.MULTILINE)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = text.parent / path if path else text
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken


def test_the_first_page_of_the_site_has_parts_of_the_readme() -> None:
    index, config = ROOT / "docs/index.md", SimpleNamespace(docs_dir=ROOT / "docs", repo_url="https://site")
    page = runpy.run_path(str(ROOT / "docs/hooks.py"))["on_page_markdown"](index.read_text(encoding="utf-8"), config)
    assert "--8<--" not in page and len(page.splitlines()) > 40
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", page) if not link.startswith("https://")]
    assert links and not [link for link in links if not (ROOT / "docs" / link).exists()]


@pytest.mark.parametrize("text", [*TEXTS, *ROOT.glob("reports/reference/*/README.md")], ids=_name)
def test_no_line_of_prose_is_wider_than_one_of_code(text: Path) -> None:
    lines = text.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120 and " " in line and not line.startswith(("|", "    ", "!["))]


def test_the_navigation_names_every_page_once() -> None:
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(part)

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages(navigation)) == [page.name for page in PAGES]


def test_the_citation_names_papers_with_all_that_one_needs_to_find_them() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year"} <= set(paper), paper
        assert all("family-names" in author and "given-names" in author for author in paper["authors"]), paper


def test_the_console_script_is_the_same_program() -> None:
    (name, value), *more = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ].items()
    assert (name, more) == ("adapter-fusion", [])
    entry = EntryPoint(name, value, "console_scripts")
    script = f"import sys; from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
    results = [
        subprocess.run(
            [sys.executable, *program, "tasks", "show", "no-such-task"], cwd=ROOT, capture_output=True, text=True
        )
        for program in (["-c", script], ["-m", "pipeline"])
    ]
    assert [result.returncode for result in results] == [2, 2]
    assert results[0].stderr == results[1].stderr != ""
