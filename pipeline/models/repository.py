"""Read a pretrained model's folder or Hub repository without running its code; report problems in one line.

Its files are checked before any class of transformers sees them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.utils import cached_file
from transformers.utils import has_file as hub_has_file

from pipeline.system.backbone_name import is_folder, refused
from pipeline.system.errors import shortened
from pipeline.system.reading import read_json

# Families that `adapters` supports and the tests train. RoBERTa's do not use the positions below padding_idx + 1.
POSITION_OFFSET = {
    "bert": 0,
    "distilbert": 0,
    "roberta": 2,
    "xlm-roberta": 2,
    "electra": 0,
    "deberta-v2": 0,  # also DeBERTa-v3
    "modernbert": 0,
}
ENCODER = "encoder (config.json, model.safetensors)"
OTHER_CONFIG = "use the config.json that the weights were saved with"

_CONFIGURATION = "configuration (config.json)"
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_MOST_LAYERS = 1000
_INDEX = "model.safetensors.index.json"
_SAFE = ("model.safetensors", _INDEX)
_PICKLED = "pytorch_model.bin"
_OWN_ATTENTION = (None, True, False, "eager", "sdpa")
_ONLY_ASK = {
    f"_raise_exceptions_for_{problem}": False for problem in ("gated_repo", "missing_entries", "connection_errors")
}
_CONVERT = "if you trust them, load them once with AutoModel.from_pretrained and save_pretrained them into a folder"
# Reads the configuration as transformers does, perhaps from another file than config.json, without using it.
_DESCRIPTION = SimpleNamespace(from_pretrained=lambda name, **_: PretrainedConfig.get_config_dict(name)[0])
_TALKATIVE = ("transformers", "adapters", "huggingface_hub")
# AdapterHub says this while it is activating an adapter.
logging.getLogger("adapters.model_mixin").addFilter(lambda record: "none are activated" not in record.getMessage())


def configuration(name: str) -> PretrainedConfig:
    """The configuration of a backbone, after checks that its family is supported and that loading it runs no code."""
    described: dict[str, Any] = read_pretrained(name, _CONFIGURATION, _DESCRIPTION)
    _check_runs_no_code(name, described)
    # Check before a class of transformers sees it: for some model types they load other repositories, and trust them.
    family = described.get("model_type")
    if not isinstance(family, str):
        raise refused(name, f"no readable {_CONFIGURATION}: its model_type is {shortened(family)}, which is not a name")
    if family not in POSITION_OFFSET:
        families = ", ".join(POSITION_OFFSET)
        raise refused(name, f"model type {shortened(family)} is not supported; use one of {families}")
    config: PretrainedConfig = read_pretrained(name, _CONFIGURATION, AutoConfig)
    _check_config(name, config)
    return config


def read_pretrained(name: str, what: str, auto_class: Any, **keywords: Any) -> Any:
    """The result of ``auto_class.from_pretrained`` for a Hub id or a folder, without remote code.

    Raises a :class:`PipelineError` that says that ``what`` cannot be read, and why.
    """
    in_folder = is_folder(name)
    try:
        with _quiet():
            return auto_class.from_pretrained(name, trust_remote_code=False, **keywords)
    except Exception as error:
        # Loaders raise OSError, KeyError, a TypeError for a missing vocabulary, a RuntimeError for wrong shapes, and a
        # bare Exception for a damaged tokenizer.json.
        if type(error).__name__ == "SafetensorError":
            message = f"its weights file is damaged ({reason_of(error)}): copy it again"
        elif what == ENCODER and not any(has_file(name, file) for file in _SAFE) and has_file(name, _PICKLED):
            message = f"its weights are pickled ({_PICKLED}), and reading them could run code: {_CONVERT}"
        elif "size mismatch" in str(error):
            message = f"its weights do not fit its config.json ({reason_of(error, 'size mismatch')}): {OTHER_CONFIG}"
        elif in_folder:
            message = f"the folder has no readable {what}: {reason_of(error)}"
        else:
            message = (
                "cannot be downloaded from the Hub: check the id, connect, or give a local folder with --backbone DIR"
                f" ({reason_of(error)})"
            )
        raise refused(name, message) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Let libraries log only errors: their other messages while loading are expected, or reported in our words.

    Commands do so from the start (:func:`pipeline.system.process.set_up`); a program that loads a model gets its log
    levels back.
    """
    levels = {logger: logger.level for logger in map(logging.getLogger, _TALKATIVE)}
    try:
        for logger, level in levels.items():
            logger.setLevel(max(level, logging.ERROR))
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def has_file(name: str, file: str) -> bool:
    """Whether a folder or repository has a file; False if the Hub cannot be reached."""
    if is_folder(name):
        return (Path(name) / file).exists()
    with suppress(Exception):
        return bool(hub_has_file(name, file))
    return False


def reason_of(error: Exception, mark: str = "") -> str:
    """The first line of ``error`` that contains ``mark``, shortened; with the error's type if that says more."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and mark in line]
    text = shortened(lines[0], most=200)[1:-1].rstrip(".:") if lines else ""
    return text if isinstance(error, OSError | RuntimeError) and text else f"{type(error).__name__}: {text}"


def _check_runs_no_code(name: str, configuration: dict[str, Any]) -> None:
    """Before loading, refuse a folder or repository whose files name code to run, or pickled weights."""
    files = {"config.json": configuration, "tokenizer_config.json": _json_of(name, "tokenizer_config.json")}
    for file, described in files.items():
        if "auto_map" in described:
            problem = f"its {file} names custom code (auto_map), which is never run"
            raise refused(name, f"{problem}: use a backbone whose code is in transformers")
        for key, value in described.items():
            if "attn_implementation" in key and value not in _OWN_ATTENTION:
                problem = f"its {file} names attention that is fetched and run ({key} = {shortened(value)})"
                raise refused(name, f"{problem}: remove the key")
    shards = _json_of(name, _INDEX).get("weight_map", {})
    if others := sorted({str(file) for file in shards.values()} if isinstance(shards, dict) else {"no table"}):
        others = [file for file in others if not file.endswith(".safetensors")]
    if others:
        raise refused(name, f"its {_INDEX} names weights that are not safetensors ({shortened(others[0])}): {_CONVERT}")


def _check_config(name: str, config: PretrainedConfig) -> None:
    """Before it is built, refuse a decoder, or an encoder with invalid or inconsistent sizes."""
    if getattr(config, "is_decoder", False):
        problem = "its config.json says is_decoder = true, so that a token sees only those before it"
        raise refused(name, f"{problem}: use an encoder")
    for key in _SIZES:
        size = getattr(config, key, None)
        if type(size) is not int or size < 1:
            problem = f"its config.json says {key} = {shortened(size)}, which has to be a whole number above 0"
            break
    else:
        layers, heads, width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
        if layers > _MOST_LAYERS:
            problem = f"its config.json says {layers} layers, more than {_MOST_LAYERS}"
        elif width % heads:
            problem = f"{heads} attention heads do not divide its hidden_size ({width})"
        else:
            return
    raise refused(name, f"{problem}: {OTHER_CONFIG}")


def _json_of(name: str, file: str) -> dict[str, Any]:
    """The object in a JSON file of a folder or repository; empty if the file is missing or unreadable."""
    # Any error may occur here; the code that loads the file reads it again and reports what is wrong.
    with suppress(Exception):
        path = Path(name) / file if is_folder(name) else cached_file(name, file, **_ONLY_ASK)
        content = read_json(Path(path), "") if path is not None and Path(path).exists() else {}
        return content if isinstance(content, dict) else {}
    return {}
