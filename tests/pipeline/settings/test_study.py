"""Every shipped study is valid with all its recipes, and a bad one is told all its mistakes at once."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.data.tasks import built_in_tasks
from pipeline.settings.kinds import KINDS
from pipeline.settings.parse_study import parse_study, with_task_names
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.demo import TASKS as DEMO_TASKS
from stages.studies import find_study, study_names

SHIPPED = study_names()
SMALL: dict[str, Any] = {"name": "small", "methods": ["full", "adapter"], "targets": ["sst", "sts"], "seeds": [1, 2]}


def parse(given: dict[str, Any] | None = None, **changes: Any) -> Study:
    return parse_study(SMALL | changes, "small.toml", given=given or {})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_study_survives_json_and_has_recipes_that_fit_its_tasks(name: str) -> None:
    study = find_study(name)
    assert study.name == name
    assert study.description
    assert study.reference in study.methods
    assert set(study.all_tasks) <= {*built_in_tasks(), *DEMO_TASKS}
    assert Study.model_validate_json(study.model_dump_json()) == study
    for row in study.methods:
        assert study.targets_of(row)
        method = study.row(row).method
        for task in study.all_tasks:
            for curve in (False, True):
                assert study.recipe_for(row, task, curve).trainable in KINDS[method].trains
        for task in study.all_tasks if method == "multitask" else study.targets_of(row):
            if described := built_in_tasks().get(task):
                recipe = resolve(study.recipe_for(row, task), described, "fp32", longest=512, depth=6)
                assert None not in (recipe.encoding, recipe.pooling, recipe.head, recipe.epochs, recipe.learning_rate)


@pytest.mark.parametrize(
    "where",
    [
        {"recipe": {"extra": {"mr": {}}}},
        {"tasks": {"sts": {"extra": [{"task": "mr"}]}}},
        {"rows": {"full": {"tasks": {"sts": {"extra": {"mr": {}}}}}}},
        {"rows": {"full": {"tune": {"extra": [{"mr": {}}, {}]}}}},
        {"tune": {"full": {"extra": [{}, {"mr": {}}]}}},
        {"curve": {"recipe": {"extra": {"mr": {}}}}},
    ],
    ids=["recipe", "task", "row on a task", "tuned", "tuned by a method", "curve"],
)
def test_a_target_may_stand_apart_from_a_task_whose_rows_others_are_given(where: dict[str, Any]) -> None:
    assert parse(apart={"sst": ["mr"]}, **where).apart == {"sst": ("mr",)}
    with pytest.raises(PipelineError, match="apart.sst.0: neither .*'mr'"):
        parse(apart={"sst": ["mr"]})


@pytest.mark.parametrize(
    ("name", "methods", "reference"),
    [
        ("wang-2024-schedules", ["baseline", "simultaneous"], "simultaneous"),
        ("wang-2024", ["concat", "dropout-10"], "dropout-10-1"),
        ("default", ["sequential", "full"], "full"),
        ("default", ["sequential", "adapter", "fusion"], "adapter"),
    ],
)
def test_the_first_row_that_is_not_sequential_is_the_reference_whatever_it_is_called(
    name: str, methods: list[str], reference: str
) -> None:
    assert find_study(name, methods=methods).reference == reference


def test_of_recipes_the_rows_is_over_the_tasks_and_that_over_the_studys() -> None:
    changes: dict[str, Any] = {
        "recipe": {"epochs": 3, "batch_size": 8, "max_length": 20},
        "tasks": {"sts": {"batch_size": 9, "max_length": 30}},
        "rows": {
            "full": {"recipe": {"max_length": 40}},
            "short": {"method": "full", "tasks": {"sts": {"max_length": 50}}},
        },
        "curve": {"recipe": {"epochs": 7}},
    }
    study = parse(**changes)
    assert [study.recipe_for("short", task).max_length for task in ("sst", "sts")] == [20, 50]
    assert parse({"max_length": 9}, **changes).recipe_for("short", "sts").max_length == 9
    assert study.recipe_for("full", "sst") == Recipe(trainable="full", epochs=3, batch_size=8, max_length=40)
    assert study.recipe_for("full", "sts") == Recipe(trainable="full", epochs=3, batch_size=9, max_length=40)
    assert study.recipe_for("adapter", "sts") == Recipe(trainable="adapter", epochs=3, batch_size=9, max_length=30)
    assert study.recipe_for("adapter", "sts", curve=True).epochs == 7


def test_values_put_over_a_study_hold_for_every_row_task_and_point() -> None:
    changes: dict[str, Any] = {
        "recipe": {"epochs": 3},
        "tasks": {"sts": {"epochs": 6}},
        "rows": {"full": {"recipe": {"epochs": 5, "batch_size": 4}}},
        "curve": {"recipe": {"epochs": 9}},
    }
    study, changed = parse(**changes), parse({"epochs": 1}, **changes)
    for row in ("full", "adapter"):
        assert {changed.recipe_for(row, task, curve).epochs for task in ("sst", "sts") for curve in (0, 1)} == {1}
    assert changed.recipe_for("full", "sst").batch_size == 4
    recipes = {"recipe", "tasks", "rows", "curve"}
    assert changed.model_dump(exclude=recipes) == study.model_dump(exclude=recipes)
    assert study.recipe_for("full", "sst").epochs == 5


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        (
            {"adapter": "pfeiffer", "drop_layers": "0-4"},
            {"drop_layers": "0-2"},
            {"adapter": "pfeiffer", "drop_layers": "0-2"},
        ),
        ({"adapter": {"drop_layers": "0-4"}}, {"drop_layers": "0-2"}, {"drop_layers": "0-2"}),
        ({"adapter": "pfeiffer"}, {"adapter": {"drop_layers": "0-2"}}, {"adapter": "pfeiffer", "drop_layers": "0-2"}),
        ({"smart": 1.0, "smart_radius": 0.1}, {"smart_radius": 0.5}, {"smart": 1.0, "smart_radius": 0.5}),
        ({"backbone_learning_rate": 2e-5}, {"backbone_learning_rate": 1e-5}, {"backbone_learning_rate": 1e-5}),
    ],
)
@pytest.mark.parametrize("place", ["recipe", "task"])
def test_values_of_parts_are_put_over_flat_ones_and_leave_the_others_of_their_part(
    recipe: dict[str, Any], given: dict[str, Any], expected: dict[str, Any], place: str
) -> None:
    row = {"recipe": recipe} if place == "recipe" else {"tasks": {"sst": recipe}}
    assert parse(given, rows={"adapter": row}).recipe_for("adapter", "sst") == Recipe(**expected)


def test_what_a_file_says_of_training_is_no_mistake_of_rows_that_train_something_else() -> None:
    rows = {"full": {"recipe": {"epochs": 2}}, "both": {"method": "full", "recipe": {"trainable": "full+adapter"}}}
    study = parse({"trainable": "adapter", "epochs": 3}, rows=rows, methods=["full", "both", "adapter"])
    recipes = [study.recipe_for(row, "sst") for row in study.methods]
    assert [(recipe.trainable, recipe.epochs) for recipe in recipes] == [("full", 3), ("full", 3), ("adapter", 3)]


def test_bad_values_put_over_a_study_are_told() -> None:
    with pytest.raises(PipelineError, match="small.toml: 1 problem\n  recipe: epochs: "):
        parse({"epochs": 0}, rows={"full": {"recipe": {"epochs": 2}}})
    with pytest.raises(PipelineError, match="study 'default' with --no-curve, training options: 1 problem\n.*epochs"):
        find_study("default", {"epochs": 0}, curve=False)


def test_no_two_rows_have_the_same_title() -> None:
    one = {"method": "sequential", "title": "in turn", "sources": ["imdb"]}
    study = parse(
        methods=["full", "adapter", "one", "two", "both", "again"],
        sources=["imdb", "quora"],
        rows={
            "one": one,
            "two": {**one, "sources": ["quora"]},
            "both": {**one, "sources": ["imdb", "quora"]},
            "again": {"method": "adapter", "title": "adapter"},
        },
    )
    assert [study.title(name) for name in study.methods] == [
        "full fine-tuning",
        "adapter (adapter)",
        "in turn, from imdb",
        "in turn, from quora",
        "in turn",
        "adapter (again)",
    ]
    assert study.title("both", "imdb") == "in turn, from imdb (both)"


def test_the_curve_has_the_points_below_the_main_tables_rows() -> None:
    assert parse().curve_points == ()
    assert parse(curve={}).curve_points == (100, 300, 1000)
    assert parse(curve={"rows": [300, 100]}, limit=300).curve_points == (100,)
    assert parse(curve={"rows": [300, 100]}, limit=300, target_limit=50).curve_points == ()
    of = parse(curve={"methods": ["full", "fusion"], "targets": ["sts"]})
    assert of.curve_rows() == {"full": ("sts",)}


def test_every_row_has_a_curve_unless_the_curve_names_its_own() -> None:
    rows = {"wide": {"method": "adapter"}, "one": {"method": "full", "targets": ["sst"]}}
    study = parse(methods=["frozen", "full", "wide", "one", "merge"], rows=rows, curve={})
    both = ("sst", "sts")
    assert study.curve_rows() == {"frozen": both, "full": both, "wide": both, "one": ("sst",), "merge": both}
    for name in ("pfeiffer-2021", "experts-first"):
        study = find_study(name, curve_rows=[50])
        assert [*study.curve_rows()] == [*study.methods]


def test_aliases_become_their_tasks_everywhere() -> None:
    aliases = {"qqp": "quora", "lmrd": "imdb"}
    study = parse(
        targets=["qqp", "sts"], sources=["lmrd"], tasks={"qqp": {"epochs": 2}}, methods=["full", "s", "sequential"],
        rows={
            "s": {"method": "full", "targets": ["qqp"]},
            "sequential": {"sources": ["lmrd"], "published": {"lmrd": "LMRD first"}},
        },
        curve={"targets": ["qqp"]}, published={"report": "Xu", "table": "1", "tasks": {"a": "qqp"}},
    )  # fmt: skip
    study = with_task_names(study, lambda name: aliases.get(name, name))
    assert (study.targets, study.sources, study.targets_of("s")) == (("quora", "sts"), ("imdb",), ("quora",))
    assert study.recipe_for("full", "quora").epochs == 2
    assert study.published_names("sequential", "imdb") == ("LMRD first",)
    assert study.curve_rows()["full"] == ("quora",)
    assert study.published.tasks == {"a": "quora"}
    with pytest.raises(PipelineError, match="targets: 'quora' is listed twice"):
        with_task_names(parse(targets=["qqp", "quora"]), lambda name: aliases.get(name, name))


def test_scoring_is_a_word_or_a_table() -> None:
    assert parse().scoring.of("sst") == "dev"
    assert parse(scoring="half").scoring == parse(scoring={"rows": "half"}).scoring
    study = parse(targets=["qqp", "sts"], scoring={"rows": "half", "tasks": {"qqp": "train"}})
    renamed = with_task_names(study, lambda name: {"qqp": "quora"}.get(name, name))
    assert [renamed.scoring.of(task) for task in ("quora", "sts")] == ["train", "half"]
    assert study.scoring.of("quora", "qqp") == "train"  # a name and its alias


def test_overrides_leave_rows_and_recipes_of_other_tasks_without_effect() -> None:
    study = find_study("xu-2024", targets=["sst", "sts"], seeds=[1], limit=300)
    assert study.recipe_for("full", "sts").head == "cosine"
    assert study.all_tasks == ("sst", "sts", "imdb", "quora")
    alone = find_study("default", targets=["sst"], methods=["frozen", "full"])
    assert alone.targets_of("siamese") == ()
    assert find_study("default", targets=["sst", "mine"]).targets_of("siamese") == ()


def test_the_curve_is_switched_on_and_off(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["full"]\ntargets = ["sst"]\nseeds = [1]\n')
    assert find_study(str(file)).curve is None
    assert find_study(str(file), curve=True).curve_points == (100, 300, 1000)
    file.write_text(file.read_text() + "[curve]\nrows = [7]\n")
    assert find_study(str(file), curve=True).curve_points == (7,)
    assert find_study(str(file), curve=False).curve is None
    assert find_study(str(file), curve_rows=[3, 9]).curve_points == (3, 9)
    with pytest.raises(PipelineError, match="--curve-rows with --no-curve"):
        find_study(str(file), curve_rows=[3], curve=False)


def test_another_word_for_scoring_keeps_the_rest_of_its_table() -> None:
    """The split's seed, which chooses the test rows, and the tasks that have a word of their own."""
    own = find_study("few-rows").scoring
    assert find_study("few-rows", scoring=own.rows).scoring == own
    assert find_study("few-rows", scoring="half").scoring == own.model_copy(update={"rows": "half"})


@pytest.mark.parametrize(("curve", "flag"), [(True, "--curve"), (False, "--no-curve")])
def test_bad_overrides_are_told_with_the_flag_that_was_given(curve: bool, flag: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["full"]\ntargets = ["sst"]\nseeds = [1]\ncolour = 1\n')
    with pytest.raises(PipelineError) as caught:
        find_study(str(file), dev_limit=9, curve=curve)
    assert str(caught.value).startswith(f"{file} with --dev-limit, {flag}: 1 problem\n")


def test_a_study_is_found_by_its_file_and_named_like_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('methods = ["full"]\ntargets = ["sst"]\nseeds = [1]\n')
    assert find_study(str(file)).name == "mine"
    file.write_text('name = "other"\n' + file.read_text())
    assert find_study(str(file)).name == "other"


@pytest.mark.parametrize("name", ["nothing", "nothing.toml"])
def test_an_unknown_study_is_answered_with_those_there_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    with pytest.raises(PipelineError, match=r"^unknown study 'mine': did you mean mine\.toml\?$"):
        find_study("mine")
    with pytest.raises(PipelineError) as caught:
        find_study(name)
    assert f"unknown study '{name}'" in str(caught.value)
    assert ", ".join(SHIPPED) in str(caught.value)


IN_TURN: dict[str, Any] = {"method": "sequential"}
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing at all": (dict.fromkeys(SMALL, ()), ["name:", "methods:", "targets:", "seeds:"]),
    "one of each kind": (
        {"colour": 1, "limit": 0, "methods": ["full", "lo ra"], "seeds": [1, 2, 1], "targets": ["sst", "../sts"]},
        ["colour:", "limit:", "methods.1:", "targets.1:", "seeds:"],
    ),
    "values that stand twice": (
        {"methods": ["full", "full"], "targets": ["sst", "sst"], "sources": ["imdb", "imdb"], "seeds": [3, 3]},
        ["methods: 'full'", "targets: 'sst'", "sources: 'imdb'", "seeds:"],
    ),
    "values that stand twice further down": (
        {"curve": {"rows": [5, 5], "targets": ["sst", "sst"]}, "rows": {"full": {"targets": ["sts", "sts"]}}},
        ["curve.rows:", "curve.targets: 'sst'", "rows.full.targets: 'sts'"],
    ),
    "rows to score that are none": (
        {"scoring": {"rows": "third", "share": 1, "tasks": {"nli": "half"}}},
        ["scoring.rows:", "scoring.share:", "scoring.tasks.nli.[key]: neither"],
    ),
    "too few tasks": (
        {"methods": ["fusion", "sequential", "multitask"], "targets": ["sst"]},
        ["targets:", "targets:", "targets:"],
    ),
    "a source that is the target itself": (
        {"methods": ["full", "fusion"], "targets": ["sst", "sts"], "rows": {"fusion": {"sources": ["sst"]}}},
        ["rows.fusion.sources:"],
    ),
    "tasks before a target that leave none": (
        {"methods": ["full", "in"], "targets": ["sst", "sts"], "rows": {"in": {**IN_TURN, "through": ["sst"]}}},
        ["rows.in.through:"],
    ),
    "two ways to say what comes before a target": (
        {"rows": {"in": {**IN_TURN, "through": ["sts"], "order": ["sts", "sst"], "sources": ["sts"]}}},
        ["rows.in.through:", "rows.in.sources:", "rows.in.sources:"],
    ),
    "tasks in turn of a row that trains one": (
        {"rows": {"in": {"method": "full", "through": ["sts"]}}},
        ["rows.in.through:"],
    ),
    "an adapter that goes through tasks for a row that needs a fresh one": (
        {
            "rows": {
                "a": {"method": "adapter", "through": ["sts"]},
                "b": {"method": "merge", "of": "a"},
                "c": {"method": "adapter", "of": "full", "through": ["sts"], "sources": ["sts"]},
            }
        },
        ["rows.b.of: 'a'", "rows.c.sources:", "rows.c.of: 'full'"],
    ),
    "an adapter through tasks that leave none, of a fusion": (
        {
            "methods": ["adapter", "fusion"],
            "targets": ["sst", "sts"],
            "rows": {
                "in": {"method": "adapter", "through": ["sst"]},
                "fusion": {"own": ["in"], "recipe": {"fusion": "standard"}},
            },
        },
        ["rows.in.through:"],
    ),
    "a name of another folder": ({"name": "runs"}, ["name: 'runs'"]),
    "tasks apart that leave none": (
        {"methods": ["full", "fusion"], "targets": ["sst", "sts"], "sources": [], "apart": {"sts": ["sst"]}},
        ["apart.sts:"],
    ),
    "tasks apart of no target": (
        {"methods": ["full"], "targets": ["sst"], "sources": ["sts"], "apart": {"sts": ["sst"]}},
        ["apart.sts:"],
    ),
    "an order of tasks that cannot be": (
        {
            "methods": ["full", "a", "b"],
            "rows": {
                "a": {"method": "multitask", "order": ["sst", "sts"]},
                "b": {"method": "sequential", "order": ["sst", "sts"], "sources": ["sst"], "after": ["sts"]},
            },
        },
        ["rows.a.order:", "rows.b.sources:", "rows.b.after:"],
    ),
    "an order of too few tasks": (
        {
            "rows": {
                "a": {"method": "sequential", "order": ["sst"]},
                "b": {"method": "multitask", "after": ["sts", "sts"]},
                "c": {"method": "sequential", "order": ["sst", "sts", "quora"]},
            }
        },
        ["rows.a.order:", "rows.b.after: 'sts'", "rows.c.order.2: neither"],
    ),
    "a row that trains what its method does not": (
        {"methods": ["full", "a"], "rows": {"a": {"method": "adapter", "recipe": {"trainable": "full"}}}},
        ["rows.a.recipe:"],
    ),
    "an empty grid": (
        {"methods": ["full"], "rows": {"full": {"targets": ["imdb"]}}, "sources": ["imdb"]},
        ["methods:"],
    ),
    "empty lists": (
        {"rows": {"full": {"targets": []}}, "curve": {"rows": [], "methods": []}, "published": {"report": "Xu"}},
        ["rows.full.targets:", "curve.rows:", "curve.methods:", "published.table:", "published.tasks:"],
    ),
    "a row that is no method": (
        {"methods": ["full", "lora"], "curve": {"methods": ["full", "rola"]}},
        ["methods: 'lora'", "curve.methods: 'rola'"],
    ),
    "a row as tables call it": ({"methods": ["full", "head"]}, ["methods: 'head'"]),
    "keys of the study in a recipe": (
        {"recipe": {"limit": 9}, "rows": {"full": {"recipe": {"seeds": [1]}}}},
        ["recipe:", "rows.full.recipe:"],
    ),
    "a row that does not say what it is": (
        {"methods": ["full", "cls"], "rows": {"cls": {}}},
        ["rows.cls.method: missing"],
    ),
    "rows with what no row has": (
        {"rows": {"full": {"pooling": "cls"}, "other": {"method": "lora"}}},
        ["rows.full.pooling:", "rows.other.method:"],
    ),
    "rows built on what is not there": (
        {"rows": {"fusion": {"of": "nothing"}, "sequential": {"of": "adapter"}, "full": {"of": "adapter"}}},
        ["rows.fusion.of:", "rows.sequential.of: 'adapter'", "rows.full.of: 'adapter'"],
    ),
    "adapters that begin as what is none, or as what began as others": (
        {
            "methods": ["full", "a", "b"],
            "rows": {
                "a": {"method": "adapter", "of": "adapter"},
                "b": {"method": "adapter", "of": "a"},
                "c": {"method": "adapter", "of": "full", "own": ["adapter"]},
                "fusion": {"own": ["full", "adapter"]},
            },
        },
        ["rows.b.of: 'a'", "rows.c.of: 'full'", "rows.c.own:", "rows.fusion.own: 'full'"],
    ),
    "variants of what they cannot stand for": (
        {
            "methods": ["full", "a", "b"],
            "rows": {
                "a": {"method": "fusion", "variant_of": "fusion"},
                "b": {"method": "fusion", "variant_of": "a"},
                "c": {"method": "fusion", "variant_of": "c"},
                "d": {"method": "fusion", "variant_of": "full"},
                "e": {"method": "adapter", "variant_of": "fusion"},
                "fusion": {},
            },
        },
        ["rows.b.variant_of: 'a'", "rows.c.variant_of: 'c'", "rows.d.variant_of: 'full'", "rows.e.variant_of:"],
    ),
    "a backbone without a name": ({"rows": {"full": {"backbone": ""}}}, ["rows.full.backbone:"]),
    "rows built on rows of another backbone": (
        {
            "rows": {
                "read": {"method": "adapter", "backbone": "backbones/read"},
                "fusion": {"of": "read", "own": ["adapter", "read"], "backbone": "backbones/other"},
                "sequential": {"backbone": "backbones/read"},
            }
        },
        [
            "rows.fusion.backbone: 'backbones/other'",
            "rows.fusion.backbone: 'backbones/other'",
            "rows.sequential.backbone: 'backbones/read'",
        ],
    ),
    "a method without a row whose usual base is on another backbone": (
        {"methods": ["full", "fusion"], "rows": {"adapter": {"backbone": "backbones/read"}}},
        ["rows.fusion.backbone:"],
    ),
    "a row whose usual base is another method here": (
        {"rows": {"adapter": {"method": "full"}, "fusion": {}}},
        ["rows.fusion.of: 'adapter'"],
    ),
    "tasks that are misspelt": (
        {
            "tasks": {"stts": {"epochs": 2}},
            "rows": {"full": {"targets": ["sst", "qoura"], "published": {"lmdr": "a"}}, "adapter": {"after": ["x"]}},
            "curve": {"targets": ["sts", "tss"]},
            "published": {"report": "Xu", "table": "1", "tasks": {"sst": "ssst"}},
            "apart": {"sst": ["sts", "mrr"]},
        },
        [
            "tasks.stts.[key]: neither",
            "rows.full.targets.1: neither",
            "rows.full.published: ",
            "rows.adapter.after.0: neither",
            "curve.targets.1: neither",
            "published.tasks.sst: neither",
            "apart.sst.1: neither",
        ],
    ),
    "a reference that is not compared": ({"reference": "fusion"}, ["reference: 'fusion'"]),
    "nothing to test": ({"methods": ["full"], "primary": "one adapter"}, ["primary:"]),
    "a sequential reference": (
        {"methods": ["full", "sequential"], "reference": "sequential"},
        ["reference: 'sequential'"],
    ),
    "a rule for members of a row that has none": (
        {"rows": {"full": {"rule": "vote", "most": 3}, "adapter": {"rule": "mean"}}},
        ["rows.full.rule:", "rows.full.most:"],
    ),
    "what a method would replace without a word": (
        {
            "methods": ["full", "a", "m", "merge"],
            "rows": {
                "a": {"method": "adapter", "tasks": {"sst": {"trainable": "full"}, "sts": {"epochs": 2}}},
                "m": {"method": "adapter", "recipe": {"merge": "ties"}, "tasks": {"sst": {"merge": {"rule": "mean"}}}},
                "merge": {"recipe": {"merge": "none"}, "tasks": {"sst": {"merge": "ties"}}},
                "full": {"recipe": {"merge": "none"}},
            },
        },
        ["rows.a.tasks.sst:", "rows.m.recipe:", "rows.m.tasks.sst:", "rows.merge.recipe:"],
    ),
    "mistakes in recipes": (
        {
            "rows": {"full": {"recipe": {"epochs": 0, "epoch": 1}}, "adapter": {"recipe": {"bottleneck": "wide"}}},
            "tasks": {"sts": {"batch_size": 0}},
            "curve": {"recipe": {"min_steps": -1}},
        },
        [
            "rows.full.recipe: epochs:",
            "rows.full.recipe: epoch:",
            "rows.adapter.recipe: bottleneck:",
            "tasks.sts: batch_size:",
            "curve.recipe: min_steps:",
        ],
    ),
    "a recipe whose keys do not go together": (
        {"rows": {"adapter": {"recipe": {"encoding": "cross", "head": "cosine"}}}},
        ["rows.adapter.recipe: head: 'cosine'"],
    ),
    "recipes of a row and a task that do not go together": (
        {"rows": {"adapter": {"recipe": {"encoding": "cross"}}}, "tasks": {"sts": {"head": "cosine"}}},
        ["rows.adapter.recipe on sts: head: 'cosine'"],
    ),
    "tables that are none": (
        {"recipe": 3, "target_limit": -1, "rows": [1], "tasks": {"sts": 1}, "curve": 5},
        ["recipe:", "target_limit:", "rows:", "tasks.sts:", "curve:"],
    ),
    "seeds that no generator takes": ({"seeds": [-1, 2], "limit": 0}, ["seeds", "limit:"]),
    "merged adapters of another seed": ({"methods": ["merge"], "source_seed": 1}, ["source_seed:"]),
    "a mean of all that joins some": (
        {"methods": ["full", "all"], "scoring": "half"}
        | {"rows": {"all": {"method": "ensemble", "of": ["full"], "rule": "uniform", "most": 2}}},
        ["rows.all.most:"],
    ),
    "a target with more rows than every task": ({"limit": 9, "target_limit": 10}, ["target_limit:"]),
    "no look at the results": ({"looks": 0}, ["looks:"]),
    "too few dev rows for a score": ({"dev_limit": 1}, ["dev_limit:"]),
}


@pytest.mark.parametrize(("changes", "expected"), BAD.values(), ids=list(BAD))
def test_a_bad_study_is_told_all_its_mistakes_at_once(changes: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        parse(**changes)
    heading, *lines = (line.strip() for line in str(caught.value).splitlines())
    assert heading == f"small.toml: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    assert not [start for start in expected if not any(line.startswith(start) for line in lines)], lines
    assert len(lines) == len(expected), lines
