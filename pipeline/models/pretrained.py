"""Pretrained files, from the Hub or a folder: whatever is wrong with them is reported in one line."""

from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.models.tensors import is_finite
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_MOST_LAYERS = 1000
_OTHER_CONFIG = "use the config.json that the weights were saved with"


def refused(name: str, problem: str) -> PipelineError:
    return PipelineError(f"backbone '{name}': {problem}")


def read_pretrained(name: str, what: str, auto_class: Any, **keywords: Any) -> Any:
    """The result of ``auto_class.from_pretrained`` for a Hub id or a folder, without remote code.

    ``what`` it reads is for the :class:`PipelineError` if there is no such folder or it cannot be read.
    """
    is_folder = _is_folder(name)
    if not is_folder and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise refused(name, "no such folder (--backbone takes a folder or a Hub id)")
    try:
        return auto_class.from_pretrained(name, trust_remote_code=False, **keywords)
    except Exception as error:
        # Loaders fail in many ways: OSError, KeyError, a TypeError for a missing vocabulary, a RuntimeError for other
        # shapes, a bare Exception for a damaged tokenizer.json.
        if type(error).__name__ == "SafetensorError":
            message = f"its weights file is damaged ({_reason(error)}): copy it again"
        elif "size mismatch" in str(error):
            message = f"its weights do not fit its config.json ({_reason(error, 'size mismatch')}): {_OTHER_CONFIG}"
        elif is_folder:
            message = f"the folder holds no readable {what}: {_reason(error)}"
        else:
            message = (
                "cannot be had from the Hub: check the id, connect, or give a local folder with --backbone DIR"
                f" ({_reason(error)})"
            )
        raise refused(name, message) from error


def check_config(name: str, config: PretrainedConfig) -> None:
    """Refuse an encoder, before it is built, one of whose sizes is none or does not fit another."""
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
    raise refused(name, f"{problem}: {_OTHER_CONFIG}")


def check_encoder(name: str, encoder: PreTrainedModel, max_length: int) -> None:
    """Refuse an encoder unless it has finite weights and runs on inputs of up to ``max_length`` tokens.

    A configuration may fit the shapes of its weights and still describe no encoder: an activation that is no function,
    an epsilon that is a text.
    """
    if broken := [key for key, tensor in encoder.state_dict().items() if not is_finite(tensor)]:
        raise refused(name, f"its weights hold NaN or infinity, first in {broken[0]}: copy it again")
    if max_length < 4:
        raise refused(name, f"it reads inputs of {max_length} tokens at most, fewer than 4")
    # Padding has no position of its own.
    tokens = torch.full((1, max_length), 1 if encoder.config.pad_token_id == 0 else 0)
    try:
        with torch.inference_mode():
            encoder.embeddings(input_ids=tokens)
            few = tokens[:, :4]
            states = encoder(input_ids=few, attention_mask=torch.ones_like(few)).last_hidden_state
    except Exception as error:
        problem = f"its config.json describes an encoder that does not run ({_reason(error)})"
        raise refused(name, f"{problem}: {_OTHER_CONFIG}") from error
    if not is_finite(states):
        raise refused(name, f"its states are NaN or infinite: {_OTHER_CONFIG}")


def _is_folder(name: str) -> bool:
    """Whether ``name`` is a folder, which must then have a configuration that can be read."""
    try:
        is_folder = Path(name).is_dir()
    except (OSError, ValueError):  # a name too long, or one with a null byte
        raise PipelineError(f"backbone {shortened(name)}: no folder and no Hub id (--backbone)") from None
    file = Path(name) / "config.json"
    if is_folder and not file.exists():
        raise refused(name, "the folder holds no config.json: give the folder of an encoder")
    if is_folder and not isinstance(read_json(file, remedy := "copy it again"), dict):
        raise PipelineError(f"{file}: not a configuration: {remedy}")
    return is_folder


def _reason(error: Exception, mark: str = "") -> str:
    """The first line of ``error`` that contains ``mark``, shortened; with its type where that says more."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and mark in line]
    text = shortened(lines[0], most=200)[1:-1].rstrip(".:") if lines else ""
    return text if isinstance(error, OSError | RuntimeError) and text else f"{type(error).__name__}: {text}"
