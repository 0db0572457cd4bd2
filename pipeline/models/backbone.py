"""Load a pretrained encoder in fp32 from the Hub or a folder, without running its code; report problems in one line.

Its files are checked before any class of transformers sees them.
"""

import copy
import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file, is_sentencepiece_available
from transformers.utils import has_file as hub_has_file

from pipeline.data.tokens import Tokenizer
from pipeline.models.tensors import is_finite
from pipeline.system.atomic import canonical_json, sha256_text
from pipeline.system.errors import shortened
from pipeline.system.reading import is_folder, read_json, refused

# Families that `adapters` supports and the tests train. RoBERTa's do not use the positions below padding_idx + 1.
_POSITION_OFFSET = {
    "bert": 0,
    "distilbert": 0,
    "roberta": 2,
    "xlm-roberta": 2,
    "electra": 0,
    "deberta-v2": 0,  # also DeBERTa-v3
    "modernbert": 0,
}
_ENCODER = "encoder (config.json, model.safetensors)"
_OTHER_CONFIG = "use the config.json that the weights were saved with"

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

HAS_POOLER = {"bert", "roberta", "xlm-roberta"}

_SENTENCEPIECE = ("spm.model", "spiece.model", "sentencepiece.bpe.model")
_POOLER = 'pretrained pooler: use pooling = "cls", or another backbone'

# Keys of a configuration that do not change the function it describes.
_INERT_CONFIG = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache"}


@dataclass(frozen=True)
class Backbone:
    """A pretrained encoder, read once from disk or the Hub's cache, with the hashes that identify it."""

    name: str
    weights_hash: str
    """sha256 over the encoder's fp32 tensors: equal for equal weights, whatever file or dtype they came from."""
    config_hash: str
    tokenizer: Tokenizer
    hidden_size: int
    max_length: int
    layers: int
    tensor_names: tuple[str, ...]
    parameters: int  # how many weights these hold
    pretrained: PreTrainedModel = field(repr=False, compare=False)
    """The encoder as loaded from its file, with its pooler if it has one. It is copied, never changed."""
    pooler: str = ""
    """sha256 over the pretrained pooler's tensors; empty: models do not use it."""

    @property
    def is_folder(self) -> bool:
        """Whether it was read from a folder, whose name means nothing elsewhere."""
        return Path(self.name).is_dir()

    @property
    def shown_name(self) -> str:
        """The name to write into files for others: the Hub id, or for a folder the hash of its weights."""
        return f"sha256:{self.weights_hash}" if self.is_folder else self.name

    @property
    def identity(self) -> dict[str, str]:
        whole = {"weights": self.weights_hash, "config": self.config_hash, "tokenizer": self.tokenizer.hash}
        return {**whole, "pooler": self.pooler} if self.pooler else whole

    def with_pooler(self) -> Self:
        """This backbone with its pretrained pooler; a :class:`PipelineError` if it has none."""
        pooler = {name: tensor for name, tensor in self.pretrained.state_dict().items() if _is_pooler(name)}
        if not pooler:
            family = self.pretrained.config.model_type
            raise refused(self.name, f"{'its file' if family in HAS_POOLER else family} has no {_POOLER}")
        return replace(
            self,
            tensor_names=(*self.tensor_names, *pooler),
            parameters=self.parameters + sum(tensor.numel() for tensor in pooler.values()),
            pooler=hash_tensors(pooler),
        )

    def load(self, hidden_dropout: float | None = None) -> PreTrainedModel:
        """A fresh fp32 copy of the encoder, with its pooler if requested by :meth:`with_pooler`.

        ``hidden_dropout`` is the dropout on embeddings and on the output of each sub-layer; None keeps the backbone's.
        Dropout on attention weights does not change.
        """
        encoder = copy.deepcopy(self.pretrained)
        if not self.pooler and hasattr(encoder, "pooler"):
            encoder.pooler = None
        _set_dropout(encoder, hidden_dropout)
        # AdapterHub writes this name into an artifact's configuration. The path it was read from would make equal
        # artifacts differ.
        encoder.config.name_or_path = f"sha256:{self.weights_hash}"
        return encoder

    def check_unchanged(self, encoder: torch.nn.Module, trained: Collection[str] = ()) -> None:
        """Raise a RuntimeError if any bit of the backbone's tensors in ``encoder``, except ``trained``, has changed."""
        state, pretrained = encoder.state_dict(), self.pretrained.state_dict()
        for name in set(self.tensor_names) - set(trained):
            if not torch.equal(state[name].cpu().view(torch.int32), pretrained[name].view(torch.int32)):
                raise RuntimeError(f"frozen weight '{name}' of '{self.name}' changed: this is a bug")

    def check_and_share(self, encoder: torch.nn.Module, trained: Collection[str] = ()) -> None:
        """Run :meth:`check_unchanged`, then make ``encoder`` share the backbone's tensors; it must not train again."""
        self.check_unchanged(encoder, trained)
        pretrained = dict(self.pretrained.named_parameters())
        for name, parameter in encoder.named_parameters():
            if name in pretrained and name not in trained:
                parameter.data = pretrained[name].data


def open_backbone(name: str) -> Backbone:
    """Load, check and identify the backbone ``name``, a folder or Hub id.

    Raises:
        PipelineError: it cannot be reached, is of an unsupported family, lacks weights or a tokenizer, its weights do
            not fit its configuration or are not finite, or it does not run.
    """
    encoder, info = _read(name, AutoModel)
    # from_pretrained silently initialises missing tensors at random.
    if missing := sorted(key for key in info["missing_keys"] if not _is_pooler(key)):
        problem = f"{len(missing)} weights are missing from its file, the first is {missing[0]}"
        raise refused(name, f"{problem}: give the folder of a complete encoder")
    if info["missing_keys"]:
        encoder.pooler = None
    config = encoder.config
    state = {name: tensor for name, tensor in encoder.state_dict().items() if not _is_pooler(name)}
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
        parameters=sum(parameter.numel() for name, parameter in encoder.named_parameters() if not _is_pooler(name)),
        pretrained=encoder,
    )


def load_masked_lm(name: str, hidden_dropout: float | None = None) -> tuple[PreTrainedModel, bool]:
    """The encoder of a backbone with a masked-language-model head, and whether the head is pretrained too.

    The decoder is tied to the word embeddings; the rest of the head has 622,650 parameters for BERT-base. Dropout is as
    for :meth:`Backbone.load`, errors are as for :func:`open_backbone`.
    """
    model, info = _read(name, AutoModelForMaskedLM)
    _set_dropout(model.base_model, hidden_dropout)
    return model, all(key.startswith(f"{model.base_model_prefix}.") for key in info["missing_keys"])


def configuration(name: str) -> PretrainedConfig:
    """The configuration of a backbone, after checks that its family is supported and that loading it runs no code."""
    described: dict[str, Any] = _read_pretrained(name, _CONFIGURATION, _DESCRIPTION)
    _check_runs_no_code(name, described)
    # Check before a class of transformers sees it: for some model types they load other repositories, and trust them.
    family = described.get("model_type")
    if not isinstance(family, str):
        raise refused(name, f"no readable {_CONFIGURATION}: its model_type is {shortened(family)}, which is not a name")
    if family not in _POSITION_OFFSET:
        families = ", ".join(_POSITION_OFFSET)
        raise refused(name, f"model type {shortened(family)} is not supported; use one of {families}")
    config: PretrainedConfig = _read_pretrained(name, _CONFIGURATION, AutoConfig)
    _check_config(name, config)
    return config


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
    """Check that frozen weights are unchanged; returns the sha256 of each of ``adapters`` and of a frozen backbone.

    ``adapters`` are the :func:`adapter_hashes` before training. Raises a RuntimeError if frozen weights have changed.
    """
    pretrained = set(backbone.tensor_names)
    trains = any(parameter.requires_grad for name, parameter in encoder.named_parameters() if name in pretrained)
    hashes = {}
    if not trains:
        backbone.check_unchanged(encoder)
        hashes["backbone"] = backbone.weights_hash
    after = adapter_hashes(encoder, adapters)
    if changed := [name for name in adapters if after[name] != adapters[name]]:
        raise RuntimeError(f"frozen adapters changed during training: {', '.join(changed)}: this is a bug")
    return hashes | after


def _set_dropout(encoder: PreTrainedModel, hidden: float | None) -> None:
    if hidden is None:
        return
    for name, module in list(encoder.named_modules()):
        if isinstance(module, torch.nn.Dropout) and not name.endswith(("self.dropout", "attention.dropout")):
            module.p = hidden
        elif hasattr(module, "out_drop"):  # ModernBERT has no dropout module here if its configuration sets none
            module.out_drop = torch.nn.Dropout(hidden)


def _read(name: str, auto_class: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The encoder in fp32 as ``auto_class`` loads it, and what its file lacked."""
    config = configuration(name)
    options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    if config.model_type == "modernbert":
        # Compiled, it would not run hooks; with flash attention, states would be (tokens, d) without padding.
        config.reference_compile, options["attn_implementation"] = False, "sdpa"
    loaded: tuple[PreTrainedModel, dict[str, Any]]
    loaded = _read_pretrained(name, _ENCODER, auto_class, config=config, **options)
    return loaded


def _is_pooler(name: str) -> bool:
    return name.startswith("pooler.")


def _load_tokenizer(name: str, config: PretrainedConfig) -> Tokenizer:
    if not is_sentencepiece_available() and not _has_file(name, "tokenizer.json"):
        file = next((file for file in _SENTENCEPIECE if _has_file(name, file)), None)
        if file is not None:
            problem = f"its tokenizer is a SentencePiece model ({file}) without a tokenizer.json"
            raise refused(name, f"{problem}: pip install sentencepiece protobuf")
    fast = _read_pretrained(name, "tokenizer (tokenizer.json)", AutoTokenizer, use_fast=True)
    if not fast.is_fast or fast.pad_token_id is None:
        raise refused(name, "needs a fast tokenizer (tokenizer.json) with a padding token")
    if len(fast) > config.vocab_size:
        problem = f"its tokenizer has {len(fast)} tokens but its embeddings {config.vocab_size}"
        raise refused(name, f"{problem}: they do not belong together")
    fast.chat_template = None  # unused by encoders, and save_pretrained would write it to a path that it names
    return Tokenizer(fast, token_types=getattr(config, "type_vocab_size", 0) > 1)


def _check_encoder(name: str, encoder: PreTrainedModel, max_length: int) -> None:
    """Refuse an encoder unless it has finite weights and runs on inputs of up to ``max_length`` tokens.

    A configuration may fit the shapes of its weights and still not work: an activation that does not exist, an epsilon
    that is a string.
    """
    if broken := [key for key, tensor in encoder.state_dict().items() if not is_finite(tensor)]:
        raise refused(name, f"its weights contain NaN or infinity, first in {broken[0]}: copy it again")
    if max_length < 4:
        raise refused(name, f"it reads inputs of {max_length} tokens at most, fewer than 4")
    # The padding token has no position.
    tokens = torch.full((1, max_length), 1 if encoder.config.pad_token_id == 0 else 0)
    try:
        with torch.inference_mode():
            encoder.embeddings(input_ids=tokens)
            few = tokens[:, :4]
            states = encoder(input_ids=few, attention_mask=torch.ones_like(few)).last_hidden_state
    except Exception as error:
        problem = f"its config.json describes an encoder that does not run ({_reason_of(error)})"
        raise refused(name, f"{problem}: {_OTHER_CONFIG}") from error
    if not is_finite(states):
        raise refused(name, f"its hidden states are NaN or infinite: {_OTHER_CONFIG}")


def _read_pretrained(name: str, what: str, auto_class: Any, **keywords: Any) -> Any:
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
            message = f"its weights file is damaged ({_reason_of(error)}): copy it again"
        elif what == _ENCODER and not any(_has_file(name, file) for file in _SAFE) and _has_file(name, _PICKLED):
            message = f"its weights are pickled ({_PICKLED}), and reading them could run code: {_CONVERT}"
        elif "size mismatch" in str(error):
            message = f"its weights do not fit its config.json ({_reason_of(error, 'size mismatch')}): {_OTHER_CONFIG}"
        elif in_folder:
            message = f"the folder has no readable {what}: {_reason_of(error)}"
        else:
            message = (
                "cannot be downloaded from the Hub: check the id, connect, or give a local folder with --backbone DIR"
                f" ({_reason_of(error)})"
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


def _has_file(name: str, file: str) -> bool:
    """Whether a folder or repository has a file; False if the Hub cannot be reached."""
    if is_folder(name):
        return (Path(name) / file).exists()
    with suppress(Exception):
        return bool(hub_has_file(name, file))
    return False


def _reason_of(error: Exception, mark: str = "") -> str:
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
    raise refused(name, f"{problem}: {_OTHER_CONFIG}")


def _json_of(name: str, file: str) -> dict[str, Any]:
    """The object in a JSON file of a folder or repository; empty if the file is missing or unreadable."""
    # Any error may occur here; the code that loads the file reads it again and reports what is wrong.
    with suppress(Exception):
        path = Path(name) / file if is_folder(name) else cached_file(name, file, **_ONLY_ASK)
        content = read_json(Path(path), "") if path is not None and Path(path).exists() else {}
        return content if isinstance(content, dict) else {}
    return {}
