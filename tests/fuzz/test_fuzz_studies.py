"""Study files: refused with a message, or read; and what is read can be planned."""

import tomllib
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from pipeline.settings.parse_study import with_task_names
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.compare.plan import in_order, job_of, plan
from stages.studies import STUDIES, find_study
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import NAMES, files, near_valid, texts, valid

SHIPPED = [tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(STUDIES.glob("*.toml"))]
listed = st.lists(st.sampled_from(NAMES) | texts, max_size=3)
# As the command line gives them, each of its type.
overrides = st.fixed_dictionaries(
    {},
    optional={
        "targets": listed,
        "sources": listed,
        "methods": listed,
        "seeds": st.lists(st.integers(), max_size=3),
        "reference": texts,
        "limit": st.integers(),
        "target_limit": st.integers(),
        "dev_limit": st.integers(),
        "curve": st.booleans(),
        "curve_rows": st.lists(st.integers(), max_size=3),
    },
)


@fuzzed(files(near_valid(Study, SHIPPED, free=valid(Recipe)), "toml"), overrides, valid(Recipe))
def test_a_study_that_parses_can_be_planned_and_is_the_same_in_json(
    room: Any, content: bytes, changed: dict[str, Any], recipe: dict[str, Any]
) -> None:
    with room() as folder:
        (folder / "own.toml").write_bytes(content)
        study = None
        with suppress(PipelineError):
            study = find_study("own.toml")
            study = find_study("own.toml", **changed)
        if study is None:
            return
        in_order(job_of(study, cell) for cell in plan(study))
        assert Study.model_validate_json(study.model_dump_json()) == study
        assert with_task_names(study, lambda name: name) == study
        with suppress(PipelineError):
            given = {key: value for key, value in recipe.items() if value is not None}
            study = find_study("own.toml", given, **changed)
            in_order(job_of(study, cell) for cell in plan(study))


@fuzzed(texts)
def test_a_study_of_any_name_is_found_or_refused(room: Any, name: str) -> None:
    with room(), suppress(PipelineError):
        find_study(name)
