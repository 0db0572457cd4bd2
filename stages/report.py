"""The tables, figures and page of a study, from the ledger alone; attention maps from its models.

The maps show what a model attends to in one sentence or pair (Liu & Shen 2023, tables 8 and 9).
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.methods.attention import attention_maps
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import StudyResult
from pipeline.reporting.build import TABLES_FILE, build_report, write_overview, write_page, write_tables
from pipeline.reporting.runs import AttentionMap, StudyRuns
from pipeline.runs.build import restore_run, task_of
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.system.atomic import locked
from pipeline.system.errors import PipelineError
from pipeline.system.reading import present, read_model
from pipeline.system.streams import notice
from stages.studies import name_of_study

SEPARATOR = "|||"
MOST_TOKENS = 64
"""More could not be read in a picture."""
Views = dict[tuple[str, str], tuple[RunRecord, str]]
"""The runs to show, each as it reads one of its tasks, with titles."""


def write_report(result: StudyResult, ledger: Ledger, folder: Path, maps: Sequence[AttentionMap] = ()) -> None:
    """Write results.csv, tables.md, tables.tex, tables/, figures/ and index.html of a study into ``folder``.

    The folder above has an index.html over all studies.
    """
    report = build_report(result, ledger, folder, maps)
    write_tables(report, folder)
    write_page(report, folder)
    write_overview(report, folder)


def report(study: str, reports: Path, attention: str | None = None, runs: Sequence[str] | None = None) -> Path:
    """Write a study's report again without training.

    Args:
        study: its name, or its TOML file.
        attention: a sentence, or two as ``"a ||| b"``, whose attention maps are drawn too.
        runs: the runs whose models are shown; by default each row's first run on the first target.

    Raises:
        PipelineError: the study was never compared here, or its runs are gone.
    """
    if runs is not None and attention is None:
        raise PipelineError("--runs names the models whose attention is drawn: give --attention with it")
    folder, ledger = reports / name_of_study(study), Ledger(reports)
    result = result_of(study, reports)
    maps = maps_of(attention, runs, result, ledger) if attention is not None else ()
    with locked(folder / ".lock"):
        # A compare may have ended while maps were drawn or the lock was waited for.
        write_report(result_of(study, reports), ledger, folder, maps)
    return folder


def summary_of(folder: Path) -> list[str]:
    """Lines of a report: what the study found, its scores, and where the tables and the page are."""
    parts = (folder / TABLES_FILE).read_text(encoding="utf-8").split("\n## ")
    lines = "\n## ".join(parts[:2]).rstrip().split("\n")
    return [*lines, "", f"all tables: {folder / TABLES_FILE}", f"page: {folder / 'index.html'}"]


def result_of(study: str, reports: Path) -> StudyResult:
    """The last result that ``compare`` wrote for a study, found by name or TOML file.

    Raises:
        PipelineError: it was never compared here, or what was written is damaged.
    """
    file = reports / name_of_study(study) / "study.json"
    if not present(file):
        raise PipelineError(f"{file}: no such study here: run python -m pipeline compare --study {study} first")
    return read_model(StudyResult, file, "run compare again")


def maps_of(text: str, runs: Sequence[str] | None, result: StudyResult, ledger: Ledger) -> list[AttentionMap]:
    """The maps of ``text`` in the models of ``runs``, one a task that each was trained on at once.

    Without ``runs``, each row of the study shows its run of the first seed on its first target, or on all where the
    tasks of one model have modules or layers of their own. A model reads the text
    as it reads that task: with its modules, in its layers, and a pair as one input, or apart with a map each. Runs
    that kept no model are named on stderr and left out. There must be something to read, not too much, and a model.
    """
    sentences = parse_sentences(text)
    opened = cache(lambda backbone, store: Workspace(backbone, None, store, ledger.root.parent))
    maps: list[AttentionMap] = []
    left_out: set[str] = set()
    views = _named(runs, ledger) if runs is not None else _chosen(StudyRuns(result, ledger))
    for (run, task), (record, title) in views.items():
        try:
            workspace = opened(record.backbone, Path(record.artifact).parents[2] if record.artifact else ledger.root)
            maps += _maps(record, task, title, sentences, workspace)
        except PipelineError as error:
            if run not in left_out:
                notice(f"note: no attention map of run {run} ({title}): {error}")
            left_out.add(run)
    if not maps:
        raise PipelineError("--attention: no run here kept its model: name others with --runs")
    if (tokens := max(len(drawn.tokens) for drawn in maps)) > MOST_TOKENS:
        raise PipelineError(f"--attention: {tokens} tokens are more than a picture can show ({MOST_TOKENS}): give less")
    return maps


def parse_sentences(text: str) -> list[str]:
    """One sentence, or the two of ``"a ||| b"``; an error if there are more, or an empty one."""
    sentences = [part.strip() for part in text.split(SEPARATOR)]
    if len(sentences) > 2 or not all(sentences):
        raise PipelineError(f"--attention {text!r}: give a sentence, or two as 'a {SEPARATOR} b'")
    return sentences


def _chosen(runs: StudyRuns) -> Views:
    """For each row its first seed on the first target of the study that it has; what rows share is shown once.

    A model reads its tasks alike unless they have modules or layers of their own: then each is shown.
    """
    study, views = runs.study, Views()
    for row in runs.rows:
        own = [each for seed in study.seeds for each in runs.all(row) if each.entry.seed == seed]
        own.sort(key=lambda each: study.targets.index(each.entry.target))
        for scored in own[:1]:
            record, title = scored.record, runs.title(scored.entry.line)
            apart = KINDS[record.kind].is_joint and (record.recipe.has_modules or record.recipe.joint.split_layers > 0)
            for each in [each for each in own if each.record.run == record.run] if apart else [scored]:
                views.setdefault((record.run, each.entry.target), (record, f"{title} for {each.entry.target}"))
    return views


def _named(runs: Sequence[str], ledger: Ledger) -> Views:
    views = Views()
    for run in runs:
        if (record := ledger.find(run)) is None:
            raise PipelineError(f"--runs {run}: no such run in {ledger.root}")
        title = f"{record.kind} for {{}}, seed {record.seed}"
        views |= {(run, task): (record, title.format(task)) for task in record.trained_on}
    return views


def _maps(
    record: RunRecord, task: str, title: str, sentences: Sequence[str], workspace: Workspace
) -> list[AttentionMap]:
    backbone = workspace.backbone
    # What was tuned in turn has one encoder for all its tasks, and is kept with the head of the last. It reads each
    # task as it read it when it was trained on it.
    own = task in record.trained_on
    model = restore_run(record, task_of(record, task if own else record.task), workspace)
    trained = record if own else next(each for each in workspace.ledger.lineage(record) if each.task == task)
    recipe = trained.recipe_of(task)
    assert recipe.max_length is not None
    maps = []
    for texts in [[sentence] for sentence in sentences] if recipe.encoding == "siamese" else [sentences]:
        tokens, layers = attention_maps(model.backbone, backbone.tokenizer, *texts, max_length=recipe.max_length)
        text = f" {SEPARATOR} ".join(texts)
        split = recipe.joint.split_layers or None
        maps.append(AttentionMap(record.run, title, text, tuple(tokens), layers, split))
    return maps
