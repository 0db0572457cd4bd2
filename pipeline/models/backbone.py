"""Load a pretrained encoder, from the Hub or a folder, as fp32 without remote code; problems are told in one line."""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging
from transformers.utils import cached_file, has_file, is_sentencepiece_available

from pipeline.data.tokens import Tokenizer
from pipeline.models.tensors import is_finite
from pipeline.system.atomic import canonical_json, sha256_text
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json

# Families that `adapters` supports and the tests train; positions below padding_idx + 1 are unused by RoBERTa's.
_POSITION_OFFSET = {
    "bert": 0,
    "distilbert": 0,
    "roberta": 2,
    "xlm-roberta": 2,
    "electra": 0,
    "deberta-v2": 0,  # also DeBERTa-v3
    "modernbert": 0,
}
HAS_POOLER = {"bert", "roberta", "xlm-roberta"}

_CONFIGURATION, _ENCODER = "configuration (config.json)", "encoder (config.json, model.safetensors)"
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_MOST_LAYERS = 1000
_INDEX = "model.safetensors.index.json"
_OWN_ATTENTION = (None, True, False, "eager", "sdpa")
_ONLY_ASK = {
    f"_raise_exceptions_for_{problem}": False for problem in ("gated_repo", "missing_entries", "connection_errors")
}
_SENTENCEPIECE = ("spm.model", "spiece.model", "sentencepiece.bpe.model")
_SAFE = ("model.safetensors", _INDEX)
_PICKLED = "pytorch_model.bin"
_CONVERT = "load it once with AutoModel.from_pretrained where you trust it, and save_pretrained it into a folder"
_POOLER = 'pretrained pooler: use pooling = "cls", or another backbone'
_OTHER_CONFIG = "use the config.json that the weights were saved with"
_WEIGHTS: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}

# Keys of a configuration that do not change the function it describes.
_INERT_CONFIG = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache"}

# Their messages while loading (unused poolers, inactive adapters, retries) are expected here or reported in our words.
transformers_logging.set_verbosity_error()
for _library in ("adapters", "huggingface_hub"):
    logging.getLogger(_library).setLevel(logging.ERROR)


@dataclass(frozen=True)
class Backbone:
    """A pretrained encoder on disk or in the Hub's cache, and what identifies it."""

    name: str
    weights_hash: str
    """sha256 over the encoder's fp32 tensors: equal for equal weights, whatever file or dtype they came from."""
    config_hash: str
    tokenizer: Tokenizer
    hidden_size: int
    max_length: int
    layers: int
    tensor_names: tuple[str, ...]
    parameters: int  # their number
    pooler: str = ""
    """sha256 over the pretrained pooler's tensors; empty: the encoder is read without it."""

    @property
    def is_folder(self) -> bool:
        """Whether it was read from a folder, which nobody else has under this name."""
        return Path(self.name).is_dir()

    @property
    def shown_name(self) -> str:
        """Its Hub id, or of a folder the hash of its weights: what may stand in files for others."""
        return f"sha256:{self.weights_hash}" if self.is_folder else self.name

    @property
    def identity(self) -> dict[str, str]:
        whole = {"weights": self.weights_hash, "config": self.config_hash, "tokenizer": self.tokenizer.hash}
        return {**whole, "pooler": self.pooler} if self.pooler else whole

    def with_pooler(self) -> Self:
        """The same with its pretrained pooler; a :class:`PipelineError` if it has none."""
        state = _load_encoder(self.name, pooler=True).state_dict()
        own = {name: tensor for name, tensor in state.items() if name not in self.tensor_names}
        return replace(
            self,
            tensor_names=(*self.tensor_names, *own),
            parameters=self.parameters + sum(tensor.numel() for tensor in own.values()),
            pooler=hash_tensors(own),
        )

    def load(self, hidden_dropout: float | None = None) -> PreTrainedModel:
        """A fresh fp32 copy of the encoder, with its pooler where that is asked for (:meth:`with_pooler`).

        ``hidden_dropout`` is that on embeddings and on what each sub-layer adds; None is the backbone's own. Dropout on
        attention weights stays as it is.
        """
        encoder = _load_encoder(self.name, bool(self.pooler))
        _set_dropout(encoder, hidden_dropout)
        # AdapterHub writes this name into an artifact's configuration. The path it was read from would make equal
        # artifacts differ.
        encoder.config.name_or_path = f"sha256:{self.weights_hash}"
        return encoder

    def check_unchanged(self, encoder: torch.nn.Module) -> str:
        """The hash of the backbone's tensors in ``encoder``; raise if one differs in any bit from its file."""
        state = encoder.state_dict()
        digest = hash_tensors({name: state[name] for name in self.tensor_names if not _is_pooler(name)})
        pooler = {name: state[name] for name in self.tensor_names if _is_pooler(name)}
        if digest != self.weights_hash or (pooler and hash_tensors(pooler) != self.pooler):
            raise RuntimeError(f"frozen weights of '{self.name}' changed during training: this is a bug")
        return digest

    def check_pretrained(self, encoder: torch.nn.Module, trained: Collection[str] = ()) -> None:
        """Raise if a tensor of the backbone in ``encoder``, but for ``trained``, differs in any bit from its file.

        For BERT-base, reading the file again takes less than half the time of :meth:`check_unchanged`.
        """
        state, pretrained = encoder.state_dict(), _load_encoder(self.name, bool(self.pooler)).state_dict()
        for name in set(self.tensor_names) - set(trained):
            if not torch.equal(state[name].cpu().view(torch.int32), pretrained[name].view(torch.int32)):
                raise RuntimeError(f"'{name}' of '{self.name}' changed while modules were loaded: this is a bug")


def open_backbone(name: str) -> Backbone:
    """Load, check and identify the backbone in a folder or of a Hub id.

    Raises:
        PipelineError: it cannot be reached, is of an unsupported family, lacks weights or a tokenizer, its weights do
            not fit its configuration or are not finite, or it does not run.
    """
    encoder = _load_encoder(name)
    config, state = encoder.config, encoder.state_dict()
    max_length = config.max_position_embeddings - _POSITION_OFFSET[config.model_type]
    _check_encoder(name, encoder, max_length)
    described = {key: value for key, value in config.to_dict().items() if key not in _INERT_CONFIG}
    return Backbone(
        name=name,
        weights_hash=hash_tensors(state),
        config_hash=sha256_text(canonical_json(described)),
        tokenizer=_load_tokenizer(name, config),
        hidden_size=config.hidden_size,
        max_length=max_length,
        layers=config.num_hidden_layers,
        tensor_names=tuple(state),
        parameters=sum(parameter.numel() for parameter in encoder.parameters()),
    )


def load_masked_lm(name: str, hidden_dropout: float | None = None) -> tuple[PreTrainedModel, bool]:
    """The encoder of a backbone with a masked-language-model head, and whether the head is pretrained too.

    The decoder is tied to the word embeddings; the rest of the head has 622,650 parameters for BERT-base. Dropout is as
    for :meth:`Backbone.load`, errors are as for :func:`open_backbone`.
    """
    model, info = _read_pretrained(name, _ENCODER, AutoModelForMaskedLM, **_keywords(_configuration(name)))
    _set_dropout(model.base_model, hidden_dropout)
    return model, all(key.startswith(f"{model.base_model_prefix}.") for key in info["missing_keys"])


def _set_dropout(encoder: PreTrainedModel, hidden: float | None) -> None:
    if hidden is None:
        return
    for name, module in list(encoder.named_modules()):
        if isinstance(module, torch.nn.Dropout) and not name.endswith(("self.dropout", "attention.dropout")):
            module.p = hidden
        elif hasattr(module, "out_drop"):  # in its place ModernBERT has nothing where its own dropout is zero
            module.out_drop = torch.nn.Dropout(hidden)


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over names, shapes, dtypes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def adapter_hashes(encoder: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """sha256 over the tensors of each adapter in ``encoder``, named as in its file."""
    state = encoder.state_dict()
    return {name: hash_tensors({key: state[key] for key in state if f".adapters.{name}." in key}) for name in names}


def unchanged_parts(encoder: torch.nn.Module, backbone: Backbone, adapters: Mapping[str, str]) -> dict[str, str]:
    """sha256, measured now, of the backbone if nothing of its own trains, and of each of ``adapters``.

    ``adapters`` is what :func:`adapter_hashes` gave before training; that something frozen has changed is an error.
    """
    own = set(backbone.tensor_names)
    trains = any(parameter.requires_grad for name, parameter in encoder.named_parameters() if name in own)
    hashes = {} if trains else {"backbone": backbone.check_unchanged(encoder)}
    after = adapter_hashes(encoder, adapters)
    if changed := [name for name in adapters if after[name] != adapters[name]]:
        raise RuntimeError(f"frozen adapters changed during training: {', '.join(changed)}: this is a bug")
    return hashes | after


def family_of(name: str) -> str:
    """The model type of the backbone in a folder or of a Hub id; raises as :func:`open_backbone`, but for its weights.

    Its configuration alone is read.
    """
    family: str = _configuration(name).model_type
    return family


def _configuration(name: str) -> PretrainedConfig:
    """The configuration of a supported family, whose repository runs no code when it is loaded."""
    described: dict[str, Any] = _read_pretrained(name, _CONFIGURATION, _Description)
    _check_runs_no_code(name, described)
    # Before any class of transformers sees it: those of some model types load other repositories, and trust them.
    family = described.get("model_type")
    if not isinstance(family, str):
        raise _refused(name, f"no readable {_CONFIGURATION}: its model_type is {shortened(family)}, which is no name")
    if family not in _POSITION_OFFSET:
        families = ", ".join(_POSITION_OFFSET)
        raise _refused(name, f"model type {shortened(family)} is not supported; use one of {families}")
    config: PretrainedConfig = _read_pretrained(name, _CONFIGURATION, AutoConfig)
    _check_config(name, config)
    return config


class _Description:
    """The configuration as transformers reads it, which may be another file than config.json, but not yet used."""

    @staticmethod
    def from_pretrained(name: str, trust_remote_code: bool) -> dict[str, Any]:
        described: dict[str, Any] = PretrainedConfig.get_config_dict(name)[0]
        return described


def _keywords(config: PretrainedConfig) -> dict[str, Any]:
    """How an encoder of this configuration is loaded."""
    if config.model_type != "modernbert":
        return {"config": config, **_WEIGHTS}
    # Compiled, it would not run hooks; with flash attention it would take padding out, and states would be (tokens, d).
    config.reference_compile = False
    return {"config": config, **_WEIGHTS, "attn_implementation": "sdpa"}


def _is_pooler(name: str) -> bool:
    return name.startswith("pooler.")


def _load_encoder(name: str, pooler: bool = False) -> PreTrainedModel:
    config = _configuration(name)
    if pooler and config.model_type not in HAS_POOLER:
        raise _refused(name, f"{config.model_type} has no {_POOLER}")
    layer: dict[str, Any] = {"add_pooling_layer": pooler} if config.model_type in HAS_POOLER else {}
    encoder, info = _read_pretrained(name, _ENCODER, AutoModel, **_keywords(config), **layer)
    # from_pretrained fills what a file lacks with random numbers and goes on; nobody wants that backbone.
    missing = sorted(info["missing_keys"])
    if missing and all(map(_is_pooler, missing)):
        raise _refused(name, f"its file has no {_POOLER}")
    if missing:
        problem = f"{len(missing)} weights are missing from its file, the first is {missing[0]}"
        raise _refused(name, f"{problem}: give the folder of a complete encoder")
    return encoder


def _load_tokenizer(name: str, config: PretrainedConfig) -> Tokenizer:
    if not is_sentencepiece_available() and not _has(name, "tokenizer.json"):
        file = next((file for file in _SENTENCEPIECE if _has(name, file)), None)
        if file is not None:
            problem = f"its tokenizer is a SentencePiece model ({file}) without a tokenizer.json"
            raise _refused(name, f"{problem}: pip install sentencepiece protobuf")
    fast = _read_pretrained(name, "tokenizer (tokenizer.json)", AutoTokenizer, use_fast=True)
    if not fast.is_fast or fast.pad_token_id is None:
        raise _refused(name, "needs a fast tokenizer (tokenizer.json) with a padding token")
    if len(fast) > config.vocab_size:
        problem = f"its tokenizer has {len(fast)} tokens but its embeddings {config.vocab_size}"
        raise _refused(name, f"{problem}: they do not belong together")
    fast.chat_template = None  # an encoder has no use for it, and save_pretrained would write it where its name says
    return Tokenizer(fast, token_types=getattr(config, "type_vocab_size", 0) > 1)


def _refused(name: str, problem: str) -> PipelineError:
    return PipelineError(f"backbone '{name}': {problem}")


def _check_runs_no_code(name: str, configuration: dict[str, Any]) -> None:
    """Refuse a folder or repository whose files name code to run, or weights that are pickled, before it is loaded."""
    files = {"config.json": configuration, "tokenizer_config.json": _json_of(name, "tokenizer_config.json")}
    for file, described in files.items():
        if "auto_map" in described:
            problem = f"its {file} names code of its own (auto_map), which is never run"
            raise _refused(name, f"{problem}: use a backbone that transformers has the code of")
        for key, value in described.items():
            if "attn_implementation" in key and value not in _OWN_ATTENTION:
                problem = f"its {file} names attention that is fetched and run ({key} = {shortened(value)})"
                raise _refused(name, f"{problem}: remove the key")
    shards = _json_of(name, _INDEX).get("weight_map", {})
    if others := sorted({str(file) for file in shards.values()} if isinstance(shards, dict) else {"no table"}):
        others = [file for file in others if not file.endswith(".safetensors")]
    if others:
        raise _refused(name, f"its {_INDEX} names weights that are no safetensors ({shortened(others[0])}): {_CONVERT}")


def _has(name: str, file: str) -> bool:
    """Whether a folder or repository has a file; False where the Hub cannot be asked."""
    if _is_folder(name):
        return (Path(name) / file).exists()
    with suppress(Exception):
        return bool(has_file(name, file))
    return False


def _json_of(name: str, file: str) -> dict[str, Any]:
    """The object in a JSON file of a folder or repository; empty if it is missing, or none that can be read."""
    # Failures are of many kinds; what is loaded is read again, and then refused in its own words.
    with suppress(Exception):
        path = Path(name) / file if _is_folder(name) else cached_file(name, file, **_ONLY_ASK)
        content = read_json(Path(path), "") if path is not None and Path(path).exists() else {}
        return content if isinstance(content, dict) else {}
    return {}


def _read_pretrained(name: str, what: str, auto_class: Any, **keywords: Any) -> Any:
    """The result of ``auto_class.from_pretrained`` for a Hub id or a folder, without remote code.

    ``what`` it reads is for the :class:`PipelineError` if there is no such folder or it cannot be read.
    """
    is_folder = _is_folder(name)
    if not is_folder and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise _refused(name, "no such folder (--backbone takes a folder or a Hub id)")
    try:
        return auto_class.from_pretrained(name, trust_remote_code=False, **keywords)
    except Exception as error:
        # Loaders fail in many ways: OSError, KeyError, a TypeError for a missing vocabulary, a RuntimeError for other
        # shapes, a bare Exception for a damaged tokenizer.json.
        if type(error).__name__ == "SafetensorError":
            message = f"its weights file is damaged ({_reason(error)}): copy it again"
        elif what == _ENCODER and not any(_has(name, file) for file in _SAFE) and _has(name, _PICKLED):
            message = f"its weights are pickled ({_PICKLED}), and to read them could run code: {_CONVERT}"
        elif "size mismatch" in str(error):
            message = f"its weights do not fit its config.json ({_reason(error, 'size mismatch')}): {_OTHER_CONFIG}"
        elif is_folder:
            message = f"the folder holds no readable {what}: {_reason(error)}"
        else:
            message = (
                "cannot be had from the Hub: check the id, connect, or give a local folder with --backbone DIR"
                f" ({_reason(error)})"
            )
        raise _refused(name, message) from error


def _check_config(name: str, config: PretrainedConfig) -> None:
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
    raise _refused(name, f"{problem}: {_OTHER_CONFIG}")


def _check_encoder(name: str, encoder: PreTrainedModel, max_length: int) -> None:
    """Refuse an encoder unless it has finite weights and runs on inputs of up to ``max_length`` tokens.

    A configuration may fit the shapes of its weights and still describe no encoder: an activation that is no function,
    an epsilon that is a text.
    """
    if broken := [key for key, tensor in encoder.state_dict().items() if not is_finite(tensor)]:
        raise _refused(name, f"its weights hold NaN or infinity, first in {broken[0]}: copy it again")
    if max_length < 4:
        raise _refused(name, f"it reads inputs of {max_length} tokens at most, fewer than 4")
    # Padding has no position of its own.
    tokens = torch.full((1, max_length), 1 if encoder.config.pad_token_id == 0 else 0)
    try:
        with torch.inference_mode():
            encoder.embeddings(input_ids=tokens)
            few = tokens[:, :4]
            states = encoder(input_ids=few, attention_mask=torch.ones_like(few)).last_hidden_state
    except Exception as error:
        problem = f"its config.json describes an encoder that does not run ({_reason(error)})"
        raise _refused(name, f"{problem}: {_OTHER_CONFIG}") from error
    if not is_finite(states):
        raise _refused(name, f"its states are NaN or infinite: {_OTHER_CONFIG}")


def _is_folder(name: str) -> bool:
    """Whether ``name`` is a folder, which must then have a configuration that can be read."""
    try:
        is_folder = Path(name).is_dir()
    except (OSError, ValueError):  # a name too long, or one with a null byte
        raise PipelineError(f"backbone {shortened(name)}: no folder and no Hub id (--backbone)") from None
    file = Path(name) / "config.json"
    if is_folder and not file.exists():
        raise _refused(name, "the folder holds no config.json: give the folder of an encoder")
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
