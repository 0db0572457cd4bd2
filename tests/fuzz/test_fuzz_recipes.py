"""Recipe files: refused with a message, or read; and what is read has one identity however it is written."""

import json
import tomllib
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from pipeline.data.tasks import Task, built_in_tasks
from pipeline.records.run_record import run_name
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_toml
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import as_bytes, files, near_valid


@fuzzed(files(near_valid(Recipe), "toml"), st.sampled_from(list(built_in_tasks().values())), st.booleans())
def test_a_recipe_that_parses_resolves_and_is_the_same_in_toml_and_json(
    room: Any, content: bytes, task: Task, joint: bool
) -> None:
    with room() as folder, suppress(PipelineError):
        file = folder / "recipe.toml"
        file.write_bytes(content)
        resolved = resolve(Recipe.parse(read_toml(file), str(file)), task, "fp32", longest=512, depth=12, joint=joint)
        assert resolve(resolved, task, "fp32", longest=512, depth=12, joint=joint) == resolved
        run_name({"recipe": resolved.identity})
        dumped = resolved.model_dump(mode="json")
        again = [
            Recipe.model_validate_json(resolved.model_dump_json()),
            Recipe.parse(json.loads(json.dumps(dumped)), "json"),
            Recipe.parse(tomllib.loads(as_bytes(dumped, "toml").decode()), "toml"),
        ]
        assert [(each, each.identity) for each in again] == [(resolved, resolved.identity)] * 3
