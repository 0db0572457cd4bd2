"""Proof that frozen weights are bit-identical: hashes of the tensors in memory, before and after training."""

from collections.abc import Iterable, Mapping

from torch import nn

from pipeline.models.backbone import Backbone, hash_tensors


def adapter_hashes(encoder: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """sha256 over the tensors of each adapter in ``encoder``, named as in its file."""
    state = encoder.state_dict()
    return {name: hash_tensors({key: state[key] for key in state if f".adapters.{name}." in key}) for name in names}


def unchanged_parts(encoder: nn.Module, backbone: Backbone, adapters: Mapping[str, str]) -> dict[str, str]:
    """sha256, measured now, of the backbone if nothing of its own trains, and of each of ``adapters``.

    Args:
        adapters: what :func:`adapter_hashes` gave before training.

    Raises:
        RuntimeError: something frozen has changed, which is a bug.
    """
    own = set(backbone.tensor_names)
    trains = any(parameter.requires_grad for name, parameter in encoder.named_parameters() if name in own)
    hashes = {} if trains else {"backbone": backbone.check_unchanged(encoder)}
    after = adapter_hashes(encoder, adapters)
    if changed := [name for name in adapters if after[name] != adapters[name]]:
        raise RuntimeError(f"frozen adapters changed during training: {', '.join(changed)}: this is a bug")
    return hashes | after
