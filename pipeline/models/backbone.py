"""Load a pretrained encoder, from the Hub or a folder, always as fp32 and never with remote code."""

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging

from pipeline.data.tokens import Tokenizer
from pipeline.models.pretrained import check_config, check_encoder, read_pretrained, refused
from pipeline.system.atomic import canonical_json, sha256_text

# Families that `adapters` supports and the tests train; positions below padding_idx + 1 are unused by RoBERTa's.
_POSITION_OFFSET = {"bert": 0, "distilbert": 0, "roberta": 2, "xlm-roberta": 2}
_HAS_POOLER = {"bert", "roberta", "xlm-roberta"}

_ENCODER = "encoder (config.json, model.safetensors)"
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
    parameters: int
    """Their number, without the pooler."""

    @property
    def identity(self) -> dict[str, str]:
        return {"weights": self.weights_hash, "config": self.config_hash, "tokenizer": self.tokenizer.hash}

    def load(self, hidden_dropout: float | None = None) -> PreTrainedModel:
        """A fresh fp32 copy of the encoder, without its pooler: the project pools by itself.

        Args:
            hidden_dropout: dropout on embeddings and on what each sub-layer adds; None is the backbone's own. That on
                attention weights stays as it is.
        """
        encoder = _load_encoder(self.name)
        _set_dropout(encoder, hidden_dropout)
        # AdapterHub writes this name into an artifact's configuration. The path it was read from would make equal
        # artifacts differ.
        encoder.config.name_or_path = f"sha256:{self.weights_hash}"
        return encoder

    def check_unchanged(self, encoder: torch.nn.Module) -> str:
        """The hash of the backbone's tensors in ``encoder``; raise if one differs in any bit from its file."""
        state = encoder.state_dict()
        digest = hash_tensors({name: state[name] for name in self.tensor_names})
        if digest != self.weights_hash:
            raise RuntimeError(f"frozen weights of '{self.name}' changed during training: this is a bug")
        return digest

    def check_pretrained(self, encoder: torch.nn.Module, trained: Collection[str] = ()) -> None:
        """Raise if a tensor of the backbone in ``encoder``, but for ``trained``, differs in any bit from its file.

        For BERT-base, reading the file again takes less than half the time of :meth:`check_unchanged`.
        """
        state, pretrained = encoder.state_dict(), _load_encoder(self.name).state_dict()
        for name in set(self.tensor_names) - set(trained):
            if not torch.equal(state[name].cpu().view(torch.int32), pretrained[name].view(torch.int32)):
                raise RuntimeError(f"'{name}' of '{self.name}' changed while modules were loaded: this is a bug")


def open_backbone(name: str) -> Backbone:
    """Load, check and identify a backbone.

    Args:
        name: a Hub id or a folder.

    Raises:
        PipelineError: it cannot be reached, is of an unsupported family, lacks weights or a tokenizer, its weights do
            not fit its configuration or are not finite, or it does not run.
    """
    encoder = _load_encoder(name)
    config, state = encoder.config, encoder.state_dict()
    max_length = config.max_position_embeddings - _POSITION_OFFSET[config.model_type]
    check_encoder(name, encoder, max_length)
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

    The decoder is tied to the word embeddings; the rest of the head has 622,650 parameters for BERT-base.

    Args:
        hidden_dropout: as for :meth:`Backbone.load`.

    Raises:
        PipelineError: as :func:`open_backbone`.
    """
    model, info = read_pretrained(name, _ENCODER, AutoModelForMaskedLM, **_WEIGHTS)
    _set_dropout(model.base_model, hidden_dropout)
    return model, all(key.startswith(f"{model.base_model_prefix}.") for key in info["missing_keys"])


def _set_dropout(encoder: PreTrainedModel, hidden: float | None) -> None:
    if hidden is None:
        return
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.Dropout) and not name.endswith(("self.dropout", "attention.dropout")):
            module.p = hidden


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over names, shapes, dtypes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load_encoder(name: str) -> PreTrainedModel:
    config = read_pretrained(name, "configuration (config.json)", AutoConfig)
    family = config.model_type
    if family not in _POSITION_OFFSET:
        raise refused(name, f"model type '{family}' is not supported; use one of {', '.join(_POSITION_OFFSET)}")
    check_config(name, config)
    keywords: dict[str, Any] = {"add_pooling_layer": False} if family in _HAS_POOLER else {}
    encoder, info = read_pretrained(name, _ENCODER, AutoModel, config=config, **_WEIGHTS, **keywords)
    # from_pretrained fills what a file lacks with random numbers and goes on; nobody wants that backbone.
    if missing := sorted(info["missing_keys"]):
        problem = f"{len(missing)} weights are missing from its file, the first is {missing[0]}"
        raise refused(name, f"{problem}: give the folder of a complete encoder")
    return encoder


def _load_tokenizer(name: str, config: PretrainedConfig) -> Tokenizer:
    fast = read_pretrained(name, "tokenizer (tokenizer.json)", AutoTokenizer, use_fast=True)
    if not fast.is_fast or fast.pad_token_id is None:
        raise refused(name, "needs a fast tokenizer (tokenizer.json) with a padding token")
    if len(fast) > config.vocab_size:
        problem = f"its tokenizer has {len(fast)} tokens but its embeddings {config.vocab_size}"
        raise refused(name, f"{problem}: they do not belong together")
    return Tokenizer(fast, token_types=getattr(config, "type_vocab_size", 0) > 1)
