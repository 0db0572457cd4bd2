"""What advisories say that a repository may do to somebody who loads it with transformers, and does not do here."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoConfig
from transformers.integrations import hub_kernels

from pipeline.models.backbone import load_masked_lm, open_backbone
from pipeline.system.errors import PipelineError

KERNEL = "attacker/kernel"


@pytest.fixture
def folder(backbone_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(backbone_folder, tmp_path / "untrusted"))


def change(file: Path, **values: Any) -> None:
    described = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**described, **values}))


@pytest.mark.parametrize("key", ["_attn_implementation_internal", "_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("file", ["config.json", "config.4.0.0.json"])
def test_a_kernel_that_a_configuration_names_is_not_fetched(
    key: str, file: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-4372; a repository may have a configuration of its own for each version of transformers."""
    fetched: list[object] = []
    for module in (hub_kernels, transformers.modeling_utils):
        for name in ("get_kernel", "load_and_register_kernel"):
            monkeypatch.setattr(module, name, lambda *names, **_: fetched.append(names), raising=False)
    if file != "config.json":
        shutil.copy(folder / "config.json", folder / file)
        change(folder / "config.json", configuration_files=["config.json", file])
    change(folder / file, **{key: KERNEL})
    for load in (open_backbone, load_masked_lm):
        with pytest.raises(PipelineError, match=f"names attention that is fetched and run .{key}"):
            load(str(folder))
    assert fetched == []


@pytest.mark.parametrize("model_type", ["lightglue", "mpt", None, 7, ["bert"]])
def test_no_class_sees_a_configuration_of_another_model_type(
    model_type: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-5241; without a model type, transformers would guess one from the folder's name."""
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("the configuration was used"))
    folder = folder.rename(folder.with_name("lightglue-bert"))
    change(folder / "config.json", model_type=model_type, trust_remote_code=True)
    for load in (open_backbone, load_masked_lm):
        with pytest.raises(PipelineError, match="model type 'lightglue'|model type 'mpt'|which is not a name"):
            load(str(folder))


def test_chat_templates_are_not_written_under_names_of_their_own(folder: Path, tmp_path: Path) -> None:
    """CVE-2026-9856."""
    templates = [{"name": name, "template": "evil"} for name in ("default", "../../written", str(tmp_path / "there"))]
    change(folder / "tokenizer_config.json", chat_template=templates)
    tokenizer = open_backbone(str(folder)).tokenizer
    saved = tmp_path / "one" / "two"
    saved.mkdir(parents=True)
    tokenizer.fast.save_pretrained(saved)
    assert not list(tmp_path.rglob("*.jinja"))
    assert "evil" not in "".join(file.read_text() for file in saved.iterdir())
