"""One epoch of stage one with AdapterHub's trainer."""

import time
from typing import Any, Literal

import torch
from adapters import AdapterTrainer, AutoAdapterModel, DoubleSeqBnConfig
from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from pipeline.data.tokens import TokenisedSplit
from pipeline.methods.houlsby import reduction_factor
from pipeline.runs.training_run import TrainingRun

from .setting import Setting

Padding = Literal["128 tokens", "dynamic", "dynamic, group_by_length"]


class _Clock(TrainerCallback):
    """The time from making the first batch to the end of the last step, without start-up."""

    seconds = 0.0

    def on_epoch_begin(self, *args: object, **keywords: object) -> None:
        self._started = time.perf_counter()

    def on_epoch_end(self, *args: object, **keywords: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._started


def examples_per_second(run: TrainingRun, split: TokenisedSplit, padding: Padding, setting: Setting) -> float:
    """The rate of one epoch's steps over ``split``, with the adapter, head, batch and learning rate of ``run``.

    Raises:
        RuntimeError: AdapterHub trains anything but the adapter and a linear head.
    """
    recipe, tokenizer = run.recipe, run.backbone.tokenizer.fast
    torch.manual_seed(0)
    model = AutoAdapterModel.from_pretrained(run.backbone.name, dtype=torch.float32)
    width = model.config.hidden_size
    factor = reduction_factor(width, recipe.bottleneck.width)
    model.add_adapter("task", DoubleSeqBnConfig(reduction_factor=factor, non_linearity="gelu", init_weights="houlsby"))
    model.add_classification_head("task", num_labels=run.task.outputs, layers=1)
    model.train_adapter("task")
    _check(model, recipe.bottleneck.width, run.task.outputs)
    assert split.labels is not None
    tokens = {"input_ids": [ids.tolist() for ids in split.a]}
    to_longest = padding != "128 tokens"
    encoded = tokenizer.pad(tokens, padding=False if to_longest else "max_length", max_length=128)
    rows = Dataset.from_dict({**encoded, "labels": split.labels.tolist()})
    arguments = TrainingArguments(
        str(setting.scratch / "trainer"),
        per_device_train_batch_size=recipe.batch_size,
        num_train_epochs=1,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        warmup_ratio=recipe.warmup_ratio,
        group_by_length=padding == "dynamic, group_by_length",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=setting.device == "cpu",
        dataloader_pin_memory=setting.device != "cpu",
    )
    clock = _Clock()
    trainer = AdapterTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer) if to_longest else default_data_collator,
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return len(split) / clock.seconds


def _check(model: Any, bottleneck: int, outputs: int) -> None:
    """Check that the adapter trains: if none is active, AdapterHub only logs it, and quickly trains the head alone."""
    if model.active_adapters is None or model.active_adapters.flatten() != {"task"}:
        raise RuntimeError(f"the adapter is not active: {model.active_adapters}")
    config = model.config
    sites, d = 2 * config.num_hidden_layers, config.hidden_size
    expected = sites * (2 * bottleneck * d + d + bottleneck) + d * outputs + outputs
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if trained != expected:
        raise RuntimeError(f"{trained} parameters are trained, not the {expected} of adapter and head")
