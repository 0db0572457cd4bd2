"""Write a trained model as ONNX: one file from token ids to probabilities, and a script that runs it.

The graph comes from ``torch.onnx`` on top of ``torch.export``, in fp32, with any number of rows and any length that
the backbone reads. int8 is onnxruntime's dynamic quantisation: weights are 8-bit integers, and activations are
quantised at run time.
"""

import logging
import warnings
from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from torch.export import Dim

from pipeline.data.batches import BACKBONE_INPUTS
from pipeline.data.tokens import head_tokens
from pipeline.methods.registry import use_fusion_implementation
from pipeline.system.atomic import write_json
from pipeline.system.process import DeferredInterrupts
from pipeline.training.objectives import objective_of
from stages.export.exported import SCRIPT, TASK_FILE, Trained, Written

MODEL_FILE = "model.onnx"
_LARGEST_FILE = 1_900_000_000  # bytes; protobuf ends at 2 GiB, so larger weights go into a separate file


def write(trained: Trained, folder: Path) -> Written:
    """Write the graph in fp32, the tokenizer's files and the script that runs the model."""
    write_json(folder / TASK_FILE, trained.described())
    (folder / SCRIPT).write_bytes((Path(__file__).parent / "scripts" / "run_onnx.py").read_bytes())
    trained.write_tokenizer(folder)
    _write_graph(trained, folder / MODEL_FILE)
    return Written(code="from run import answer", library="onnx")


def quantise(folder: Path) -> None:
    """Replace the graph in ``folder`` with one with int8 weights."""
    file, prepared = folder / MODEL_FILE, folder / "prepared.onnx"
    quant_pre_process(file, prepared, skip_symbolic_shape=True)
    (folder / f"{MODEL_FILE}.data").unlink(missing_ok=True)
    # Per channel: one scale per row of a weight. Seven bits, because CPUs without VNNI add up pairs of products in 16
    # bits, which eight bits could overflow.
    quantize_dynamic(prepared, file, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    prepared.unlink()


def _write_graph(trained: Trained, file: Path) -> None:
    module, (example, sizes) = Answering(trained).eval(), traced_inputs(trained)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch and transformers about their own code
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torch sets it; torchvision is not needed
        module(*example)  # joins the adapters of a fusion
        # An interrupt during tracing makes an assertion in torch fail.
        with DeferredInterrupts():
            program = torch.onnx.export(
                module,
                example,
                input_names=names_of(trained),
                output_names=["outputs", trained.answer],
                dynamic_shapes=(sizes,),
                dynamo=True,
                verbose=False,
            )
    assert program is not None
    parameters = sum(tensor.numel() for tensor in trained.model.state_dict().values())
    program.save(file, external_data=4 * parameters > _LARGEST_FILE)
    # Remove source locations, which name folders of this machine.
    model = onnx.load(file, load_external_data=False)
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    del graph.metadata_props[:], model.metadata_props[:]
    onnx.save(model, file)


class Answering(nn.Module):
    """The head's ``outputs`` (B, k) and the answer, probabilities (B, C) or scores (B,), for B rows.

    Its arguments are the backbone's, all (B, T), for each input of a row: siamese pairs give those of the first texts,
    then those of the second, with possibly another T. If the model keeps the beginning and the end of a long text, it
    takes texts of any length and cuts them.
    """

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model
        self.inputs = len(trained.inputs)
        self.siamese = trained.recipe.encoding == "siamese" and trained.task.is_pair
        self.most = trained.recipe.max_length if trained.cuts_middle else None
        self.read, self.temperature = objective_of(trained.task, trained.recipe).read, trained.temperature
        # The same function with fewer, larger matrix products.
        use_fusion_implementation(trained.model.backbone, "fast")

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        size = len(tensors) // self.inputs
        vectors = [self._encode(*tensors[start : start + size]) for start in range(0, len(tensors), size)]
        if self.siamese:
            outputs = self.model.head(*vectors)
        else:
            each = [self.model.decide(vector) for vector in vectors]
            outputs = each[0] if len(each) == 1 else torch.stack(each).mean(dim=0)
        answer = self.read(outputs)
        if self.temperature != 1:  # as Prediction.calibrated
            powers = (answer / answer.amax(dim=-1, keepdim=True)) ** (1 / self.temperature)
            answer = powers / powers.sum(dim=-1, keepdim=True)
        return outputs, answer

    def _encode(self, *tensors: Tensor) -> Tensor:
        if (most := self.most) is not None:  # keep the first and last tokens, as :func:`pipeline.data.tokens.tokenise`
            lengths = tensors[1].sum(dim=1, keepdim=True)
            positions = torch.arange(tensors[0].shape[1], device=tensors[0].device)[:most].unsqueeze(0)
            later = (lengths - most).clamp(min=0) * (positions >= head_tokens(most))
            tensors = tuple(tensor.gather(1, positions + later) for tensor in tensors)
        return self.model.encode(**dict(zip(BACKBONE_INPUTS, tensors, strict=False))).float()


def names_of(trained: Trained) -> list[str]:
    """The argument names of :class:`Answering`: ``input_ids``, or with several inputs ``input_ids_1`` and so on."""
    kinds = BACKBONE_INPUTS if trained.tokenizer.token_types else BACKBONE_INPUTS[:2]
    several = len(trained.inputs) > 1
    return [f"{kind}_{number}" if several else kind for number in range(1, len(trained.inputs) + 1) for kind in kinds]


def traced_inputs(trained: Trained) -> tuple[tuple[Tensor, ...], tuple[dict[int, Dim], ...]]:
    """Arguments for tracing, and their dynamic sizes: rows, and the length of each input."""
    most, count = trained.backbone.max_length, len(names_of(trained))
    # Tracing would take sizes of 0 and 1 for constants.
    example = tuple(torch.ones(3, min(7, most), dtype=torch.long) for _ in range(count))
    rows, lengths = Dim("rows"), [Dim(name, max=most) for name in ("length", "length_2")]
    kinds = count // len(trained.inputs)
    return example, tuple({0: rows, 1: lengths[number // kinds]} for number in range(count))
