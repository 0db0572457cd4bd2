"""Write a backbone's tokenizer as files that cut and pad as the trained model needs."""

import copy
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.data.batches import BACKBONE_INPUTS
from stages.export.trained import Trained


def write_tokenizer(trained: Trained, folder: Path) -> None:
    """Write files for transformers' AutoTokenizer; the tokenizers library alone can read them too.

    ``tokenizer.json`` cuts to the model's length, both texts of a pair alike, and pads to the longest of a batch.
    """
    fast = copy.deepcopy(trained.tokenizer.fast)
    fast.model_max_length = trained.recipe.max_length
    fast.padding_side = "right"  # as in training
    # A tokenizer may return token types that this family of encoders does not accept.
    fast.model_input_names = list(BACKBONE_INPUTS if trained.tokenizer.token_types else BACKBONE_INPUTS[:2])
    fast.init_kwargs["model_input_names"] = fast.model_input_names  # otherwise it is not saved
    fast.save_pretrained(folder)
    alone = Tokenizer.from_str(fast.backend_tokenizer.to_str())
    if trained.cuts_middle:
        alone.no_truncation()
    else:
        alone.enable_truncation(trained.recipe.max_length, strategy="longest_first", direction=fast.truncation_side)
    alone.enable_padding(pad_id=fast.pad_token_id, pad_token=fast.pad_token)
    alone.save(str(folder / "tokenizer.json"))
