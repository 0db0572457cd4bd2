"""Write a trained model as ONNX: one file from token ids to probabilities, and a script that runs it.

The graph comes from ``torch.onnx`` on top of ``torch.export``, in fp32, with any number of rows and any length that
the backbone reads. int8 is onnxruntime's dynamic quantisation: weights are 8-bit integers, and activations are
quantised at run time.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from pipeline.system.atomic import write_json
from pipeline.system.process import DeferredInterrupts
from stages.export.graph import Answering, example_of, names_of, sizes_of
from stages.export.tokenizer import write_tokenizer
from stages.export.trained import SCRIPT, TASK_FILE, Trained, Written

MODEL_FILE = "model.onnx"
SCRIPT_SOURCE = Path(__file__).parent / "scripts" / "run_onnx.py"
_LARGEST_FILE = 1_900_000_000  # bytes; protobuf ends at 2 GiB, so larger weights go into a separate file


def write(trained: Trained, folder: Path) -> Written:
    """Write the graph in fp32, the tokenizer's files and the script that runs the model."""
    write_json(folder / TASK_FILE, trained.described())
    (folder / SCRIPT).write_bytes(SCRIPT_SOURCE.read_bytes())
    write_tokenizer(trained, folder)
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
    module, example = Answering(trained).eval(), example_of(trained)
    with warnings.catch_warnings(), _without_hints(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch and transformers about their own code
        module(*example)  # joins the adapters of a fusion
        # An interrupt during tracing makes an assertion in torch fail.
        with DeferredInterrupts():
            program = torch.onnx.export(
                module,
                example,
                input_names=names_of(trained),
                output_names=["outputs", trained.answer],
                dynamic_shapes=(sizes_of(trained),),
                dynamo=True,
                verbose=False,
            )
    assert program is not None
    parameters = sum(tensor.numel() for tensor in trained.model.state_dict().values())
    program.save(file, external_data=4 * parameters > _LARGEST_FILE)
    _strip(file)


@contextmanager
def _without_hints() -> Iterator[None]:
    """Silence torch's warnings that torchvision is not installed: no model here needs it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _strip(file: Path) -> None:
    """Remove the nodes' source locations, which name folders of this machine."""
    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for values in (model.graph.input, model.graph.output, model.graph.value_info, model.graph.initializer):
        for value in values:
            value.ClearField("metadata_props")
            value.ClearField("doc_string")
    del model.graph.metadata_props[:], model.metadata_props[:]
    onnx.save(model, file)
