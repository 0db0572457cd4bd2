"""Backbones of every family load as fp32, are told apart by their weights, and are refused when incomplete."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel

from pipeline.methods.attention import attention_maps
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.models.lean import make_lean
from pipeline.system.errors import PipelineError
from tests.nano import FAMILIES, save_backbone
from tests.pipeline.methods.adapted import add_adapter


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_what_it_reads(family: str, families: dict[str, Backbone]) -> None:
    backbone = families[family]
    assert backbone.tokenizer.token_types == (family in ("bert", "electra"))
    assert backbone.max_length == (32 if family == "roberta" else 34)


def test_what_is_loaded_beside_the_backbone_may_not_change_a_bit_of_it(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_adapter(encoder, "films", "houlsby", 8)
    drawn = torch.get_rng_state()
    backbone.check_unchanged(encoder)
    assert torch.equal(torch.get_rng_state(), drawn)  # what a run draws afterwards does not depend on the check
    name = "encoder.layer.1.output.LayerNorm.bias"
    encoder.get_parameter(name).data.view(torch.int32)[-1] ^= 1
    backbone.check_unchanged(encoder, trained=[name])
    with pytest.raises(RuntimeError, match=name):
        backbone.check_unchanged(encoder)


def test_the_hash_is_of_the_weights_whatever_the_file(backbone_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(backbone_folder, tmp_path / "renamed")
    tensors = load_file(other / "model.safetensors")
    save_file(
        {f"bert.{name}": tensor for name, tensor in tensors.items()}, other / "model.safetensors", {"format": "pt"}
    )
    one, two = open_backbone(str(backbone_folder)), open_backbone(str(other))
    assert one.weights_hash == two.weights_hash
    assert one.identity == two.identity
    assert one.weights_hash != open_backbone(str(save_backbone(tmp_path / "other", seed=1))).weights_hash


def test_a_tokenizer_that_truncates_on_the_left_makes_another_backbone(backbone: Backbone, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(backbone.name, tmp_path / "left"))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation_side": "left"}))
    left = open_backbone(str(folder)).identity
    assert {name for name in left if left[name] != backbone.identity[name]} == {"tokenizer"}


def test_a_half_precision_file_is_loaded_as_fp32(backbone_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(backbone_folder, tmp_path / "half")
    halves = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    encoder = open_backbone(str(folder)).load()
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


Damage = Callable[[Path], object]
TOKENIZER = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")
WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"


def change_weights(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )

    return damage


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    return change_weights(lambda tensors: tensors.update({name: change(tensors[name])}))


def drop(*names: str, make: Callable[[Path], object] = lambda file: None) -> Damage:
    """Remove the files, and ``make`` something in the place of each."""

    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            make(folder / name)

    return damage


def write(name: str, text: str | bytes) -> Damage:
    return drop(name, make=lambda file: file.write_bytes(text.encode() if isinstance(text, str) else text))


def change_config(name: str = "config.json", **values: object) -> Damage:
    def change(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def shrink(key: str, name: str, rows: int) -> Damage:
    """The configuration and the weights agree, on few rows."""

    def change(folder: Path) -> None:
        change_config(**{key: rows})(folder)
        with_tensor(name, lambda tensor: tensor[:rows])(folder)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            drop("model.safetensors"),
            "no readable encoder (config.json, model.safetensors): Error no file named model.safetensors",
        ),
        (change_weights(dict.clear), "37 weights are missing from its file"),
        (
            change_weights(lambda tensors: tensors.pop("encoder.layer.1.output.dense.weight")),
            "1 weights are missing from its file, the first is encoder.layer.1.output.dense.weight",
        ),
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "weights file is damaged"),
        (write("model.safetensors", b""), "weights file is damaged"),
        (write("model.safetensors", b"\xff" * 16), "weights file is damaged"),
        (drop("model.safetensors", make=Path.mkdir), "no readable encoder"),
        (with_tensor(WORDS, Tensor.t), "do not fit its config.json (size mismatch"),
        (with_tensor(WORDS, Tensor.int), "no readable encoder"),
        (with_tensor(WORDS, lambda words: words / 0), f"contain NaN or infinity, first in {WORDS}: copy it again"),
        (drop("config.json"), "the folder has no config.json"),
        (drop("config.json", make=Path.mkdir), "config.json: there is a folder where a file is needed"),
        (drop("config.json", make=os.mkfifo), "config.json: not a regular file"),
        (write("config.json", "{"), "config.json: cannot be read"),
        (write("config.json", b"\xff"), "config.json: cannot be read (not UTF-8"),
        (write("config.json", "[]"), "config.json: not a configuration"),
        (write("config.json", "[" * 100_000), "config.json: cannot be read (nested too deeply)"),
        (change_config(x=json.loads("[" * 900 + "]" * 900)), "nested too deeply"),
        (write("config.json", '{"hidden_size": ' + "9" * 5000), "config.json: cannot be read"),
        (change_config(model_type="gpt2"), "model type 'gpt2' is not supported"),
        (change_config(model_type=["bert"]), "no readable configuration"),
        (change_config(hidden_size="32"), "hidden_size = '32', which has to be a whole number above 0"),
        (change_config(hidden_size=None), "hidden_size = None, which"),
        (change_config(num_hidden_layers=0), "num_hidden_layers = 0, which"),
        (change_config(num_hidden_layers=True), "num_hidden_layers = True, which"),
        (change_config(num_hidden_layers=3), "16 weights are missing"),
        (change_config(num_hidden_layers=10**7), "says 10000000 layers, more than 1000"),
        (change_config(num_attention_heads=3), "3 attention heads do not divide its hidden_size (32)"),
        (change_config(is_decoder=True), "is_decoder = true, so that a token sees only those before it"),
        (change_config(intermediate_size=48), "do not fit its config.json"),
        (change_config(intermediate_size="64"), "no readable encoder"),
        (change_config(vocab_size=9), "do not fit its config.json"),
        (shrink("vocab_size", WORDS, 9), "its tokenizer has 29 tokens but its embeddings 9"),
        (shrink("max_position_embeddings", POSITIONS, 3), "reads inputs of 3 tokens at most, fewer than 4"),
        (change_config(hidden_act="nope"), "no readable encoder (config.json, model.safetensors): KeyError: 'nope'"),
        (
            change_config(hidden_act=3),
            "describes an encoder that does not run (TypeError: 'int' object is not callable)",
        ),
        (change_config(layer_norm_eps="x"), "describes an encoder that does not run"),
        (change_config(layer_norm_eps=-1000), "states are NaN or infinite"),
        (change_config(hidden_dropout_prob=2), "no readable encoder"),
        (change_config(return_dict=False), "describes an encoder that does not run"),
        (change_config(quantization_config="x"), "no readable configuration"),
        (drop(*TOKENIZER), "tokenizer"),
        (write("tokenizer.json", "{"), "no readable tokenizer"),
        (write("tokenizer_config.json", "[" * 100_000), "no readable tokenizer (tokenizer.json): nested too deeply"),
    ],
)
def test_a_damaged_folder_is_refused_with_a_reason(
    damage: Damage, message: str, backbone_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(backbone_folder, tmp_path / "damaged")
    damage(folder)
    with pytest.raises(PipelineError) as refused:
        open_backbone(str(folder))
    assert message in str(refused.value)
    assert str(folder) in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


def test_positions_that_padding_shifts_out_of_range_are_noticed(tmp_path: Path) -> None:
    """RoBERTa counts positions from the one after the padding token's."""
    folder = save_backbone(tmp_path, "roberta")
    change_config(pad_token_id=5)(folder)
    with pytest.raises(PipelineError, match="an encoder that does not run"):
        open_backbone(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((missing, "no such folder") for missing in ("./nowhere", "/no/such/folder", "a/b/c")),
        ("x" * 5000, "neither a folder nor a Hub id"),
        ("nobody/no-such-model", "--backbone DIR"),
    ],
)
def test_a_missing_folder_is_not_taken_for_a_hub_id_and_an_unreachable_hub_names_the_way_out(
    name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        open_backbone(name)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "modernbert"])
def test_hidden_dropout_is_on_embeddings_and_sub_layers_and_not_on_attention(family, tmp_path) -> None:
    backbone = open_backbone(str(save_backbone(tmp_path / family, family)))
    before = {n: m.p for n, m in backbone.load().named_modules() if isinstance(m, torch.nn.Dropout)}
    after = {n: m.p for n, m in backbone.load(0.37).named_modules() if isinstance(m, torch.nn.Dropout)}
    kept = {name for name in before if after[name] == before[name]}
    assert kept
    assert len(kept) < len(before)
    assert all(".attention." in name and "output" not in name for name in kept)
    assert {after[name] for name in before if name not in kept} == {0.37}


@pytest.mark.parametrize(("hidden", "expected"), [(None, 0.0), (0.37, 0.37)])
def test_modernberts_dropout_is_set_where_its_own_is_zero(
    hidden: float | None, expected: float, families: dict[str, Backbone]
) -> None:
    encoder = families["modernbert"].load(hidden)
    rates = [module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)]
    assert set(rates) == {expected}
    assert len(rates) == 1 + 3 * (1 if hidden is None else 2)  # embeddings; FFN and attention of each layer
    assert encoder.layers[0].attn.attention_dropout == 0.0


def index_of(*files: str) -> Damage:
    weight_map = {f"tensor{number}": file for number, file in enumerate(files)}

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return damage


def pickled(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


CODE = "raise SystemExit('code was run')"
RUNNING: list[tuple[Damage, str]] = [
    (change_config(auto_map={"AutoModel": "evil.Model"}), "config.json names custom code (auto_map), which is never"),
    (
        change_config(model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}),
        "config.json names custom code (auto_map)",
    ),
    (change_config(auto_map={"AutoModel": "other/repo--evil.Model"}), "names custom code (auto_map)"),
    (
        change_config("tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.Tokenizer"]}),
        "tokenizer_config.json names custom code (auto_map)",
    ),
    (
        change_config(_attn_implementation="evil/kernel"),
        "names attention that is fetched and run (_attn_implementation",
    ),
    (change_config(attn_implementation="evil/kernel:f"), "names attention that is fetched and run"),
    (change_config(_attn_implementation_internal={"": "evil/kernel"}), "names attention that is fetched and run"),
    (pickled, "its weights are pickled (pytorch_model.bin), and reading them could run code: "),
    (index_of("pytorch_model.bin"), "index.json names weights that are not safetensors ('pytorch_model.bin')"),
    (index_of("model.safetensors", "evil.pkl"), "names weights that are not safetensors ('evil.pkl')"),
    (change_config(transformers_weights="evil.bin"), "neither a safetensors file"),
]


@pytest.fixture
def hub(backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the repository ``someone/encoder`` as the Hub's cache holds them; the Hub itself is out of reach."""
    repository = tmp_path / "hub" / "models--someone--encoder"
    files = shutil.copytree(backbone_folder, repository / "snapshots" / "1")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1")
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return files


@pytest.mark.parametrize("is_on_the_hub", [False, True])
@pytest.mark.parametrize(("damage", "message"), RUNNING)
def test_what_would_run_code_is_refused(
    damage: Damage, message: str, is_on_the_hub: bool, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is unpickled, whether or not the folder is refused."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    damage(hub)
    (hub / "evil.py").write_text(CODE)
    with pytest.raises(PipelineError) as refused:
        open_backbone("someone/encoder" if is_on_the_hub else str(hub))
    assert message in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_repository_of_the_hub_is_loaded(hub: Path, backbone: Backbone) -> None:
    opened = open_backbone("someone/encoder")
    assert opened.identity == backbone.identity


def test_a_sentencepiece_tokenizer_says_what_to_install(
    backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(backbone_folder, tmp_path / "sentencepiece")
    drop(*TOKENIZER)(folder)
    (folder / "spm.model").write_bytes(b"\x00")
    monkeypatch.setattr("pipeline.models.backbone.is_sentencepiece_available", lambda: False)
    with pytest.raises(PipelineError, match=r"model \(spm.model\) .* pip install sentencepiece protobuf"):
        open_backbone(str(folder))


def test_encoders_that_only_predict_are_in_memory_once(backbone: Backbone) -> None:
    one, other = backbone.load(), backbone.load()
    name = "encoder.layer.1.output.LayerNorm.bias"
    other.get_parameter(name).data += 1
    backbone.check_and_share(one)
    backbone.check_and_share(other, trained=[name])
    places = [{n: p.data_ptr() for n, p in encoder.named_parameters()} for encoder in (one, other)]
    assert {n for n in places[0] if places[0][n] != places[1][n]} == {name}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_they_are_the_mean_over_heads_of_eager_attention(family: str, pooling: Any, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, family)
    backbone = open_backbone(str(folder))
    encoder = backbone.load()
    make_lean(encoder, pooling)  # with CLS pooling the last layer else answers for the first token alone
    tokens, maps = attention_maps(encoder.eval(), backbone.tokenizer, "the film is good", max_length=24)
    types = backbone.tokenizer.token_types
    inputs = backbone.tokenizer.fast("the film is good", return_tensors="pt", return_token_type_ids=types)
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = eager(**inputs, output_attentions=True).attentions
    assert [*maps] == sorted({1, 2, len(expected)})
    for layer, found in maps.items():
        assert found.shape == (len(tokens), len(tokens))
        assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert found == pytest.approx(expected[layer - 1][0].mean(dim=0).numpy(), abs=1e-5)
