"""Task files, and names of tasks: refused with a message, or read."""

import tomllib
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from pipeline.data.tasks import BUILT_IN, Task, find_task
from pipeline.system.errors import PipelineError
from tests.fuzz.fuzz_cases import fuzzed
from tests.fuzz.fuzz_documents import as_bytes, files, near_valid, texts

SHIPPED = [tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(BUILT_IN.glob("*.toml"))]
tasks = near_valid(Task, SHIPPED)


@fuzzed(files(tasks, "toml"))
def test_a_task_that_parses_is_the_same_in_toml_and_json(room: Any, content: bytes) -> None:
    with room() as folder, suppress(PipelineError):
        file = folder / "task.toml"
        file.write_bytes(content)
        task = Task.read(file)
        assert Task.model_validate_json(task.model_dump_json()) == task
        dumped = task.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        assert Task.parse(tomllib.loads(as_bytes(dumped, "toml").decode()), "toml") == task


@fuzzed(texts, st.booleans(), tasks)
def test_a_task_of_any_name_is_found_or_refused(
    room: Any, name: str, in_folder: bool, document: dict[str, Any]
) -> None:
    with room() as folder, suppress(PipelineError):
        data = folder / "data"
        (data / "own").mkdir(parents=True)
        (data / "own" / "task.toml").write_bytes(as_bytes(document | {"name": "own"}, "toml"))
        find_task(name, *([data] if in_folder else []))
        find_task("own", data)
