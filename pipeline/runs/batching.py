"""Training batches of a run with one or more tasks, and the outputs of frozen layers that are cached in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from accelerate import Accelerator

from pipeline.data.batches import Piece, padding_worth_a_pass, training_batches
from pipeline.data.task_data import TaskData
from pipeline.data.tokens import TokenisedSplit, Tokenizer, in_random_order, joined
from pipeline.models.prefix_cache import PrefixCache
from pipeline.models.transfer_model import MultitaskModel, TransferModel
from pipeline.runs.request import Parts, first_of
from pipeline.runs.scoring import Scoring, splits_of
from pipeline.training.fit import TrainingData
from pipeline.training.mixing import TaskBatches, mixed
from pipeline.training.predict import Extend


@dataclass(frozen=True)
class Batching:
    """Makes the batches of each task, and mixes them.

    Args:
        cache_bytes: room for the cached outputs of frozen layers.
    """

    parts: Parts
    data: Mapping[str, TaskData]
    tokenizer: Tokenizer
    seed: int
    cache_bytes: float
    accelerator: Accelerator

    @cached_property
    def splits(self) -> dict[str, list[TokenisedSplit]]:
        """The training rows of each task; if their order is random, also with each pair the other way round."""
        return {
            name: splits_of(self.data[name].train, part.recipe, self.tokenizer, part.recipe.pairs.order == "random")
            for name, part in self.parts.items()
        }

    def training_data(self, model: MultitaskModel, scorings: Mapping[str, Scoring]) -> TrainingData:
        """The training batches. With a single task, its ``scorings`` may then read dev from a cache."""
        recipe, splits = first_of(self.parts).recipe, self.splits
        extend = None
        if len(self.parts) == 1:
            (name,) = self.parts
            extend = self._cached(name, model.of(name), splits[name], scorings[name])
        batches = {name: self._batches(name, model.of(name), own, extend) for name, own in splits.items()}
        data = mixed(batches, {name: len(rows.train) for name, rows in self.data.items()}, recipe, self.seed)
        return replace(data, scored_rows=sum(len(rows.dev) for rows in self.data.values()))

    def _cached(
        self, name: str, model: TransferModel, splits: Sequence[TokenisedSplit], scoring: Scoring
    ) -> Extend | None:
        """Cache the outputs of frozen layers: for dev, which is read after every epoch, and if room is left for train.

        Returns a function that adds them to a piece of a training batch, or None without room.
        """
        recipe = self.parts[name].recipe
        cache = partial(
            PrefixCache,
            model,
            batch_size=2 * recipe.batch_size,
            pad_token_id=self.tokenizer.pad_token_id,
            accelerator=self.accelerator,
        )
        dev = cache(joined(scoring.splits), max_bytes=self.cache_bytes)
        scoring.extend = dev.extend
        # Rows that are read once are not worth caching, and SMART runs all layers, on perturbed embeddings.
        again = recipe.epochs_over(len(self.data[name].train)) > 1 and not recipe.smart.weight
        train = cache(joined(splits), max_bytes=self.cache_bytes - dev.bytes if again else 0)
        return train.extend if train.bytes else None

    def _batches(
        self, name: str, model: TransferModel, splits: Sequence[TokenisedSplit], extend: Extend | None
    ) -> TaskBatches:
        """The batches of one task; ``extend`` adds cached layer outputs to each piece."""
        recipe, accelerator = self.parts[name].recipe, self.accelerator
        pieces = recipe.gradient_accumulation_steps * accelerator.num_processes
        # What a cache extends keeps its padding.
        worth = model.most_padding if extend is None else padding_worth_a_pass
        most_padding = worth(accelerator.device, recipe.precision)

        def of_epoch(epoch: int) -> TokenisedSplit:
            return splits[0] if len(splits) == 1 else in_random_order(splits[0], splits[1], self.seed, epoch)

        return TaskBatches(
            of_pass=lambda epoch, first: (
                [Piece(part if extend is None else extend(part)) for part in batch]
                for batch in training_batches(
                    of_epoch(epoch),
                    recipe.batch_size,
                    pieces,
                    self.seed,
                    epoch,
                    self.tokenizer.pad_token_id,
                    first,
                    most_padding,
                )
            ),
            count=recipe.steps_over(len(splits[0])),
        )
