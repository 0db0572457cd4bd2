"""What SECURITY.md says of torch.load and pickle."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_nothing_is_unpickled_but_what_a_study_sends_to_its_own_processes() -> None:
    """Neither by torch.load nor by pickle itself."""
    own = {*(ROOT / "stages" / "compare" / "executors").glob("*.py"), ROOT / "stages" / "compare" / "train.py"}
    for file in {*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "stages").rglob("*.py")} - own:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("pickle", "load"), ("pickle", "loads")}
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "dill", "joblib", "cloudpickle"}, file
