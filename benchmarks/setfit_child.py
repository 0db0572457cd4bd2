"""SetFit in an environment of its own: rows as JSON on stdin, the classes of the test rows as JSON on stdout."""

import json
import sys
import tempfile

from datasets import Dataset
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments

given = json.load(sys.stdin)
encoder = models.Transformer(given["backbone"], max_seq_length=256)
body = SentenceTransformer(modules=[encoder, models.Pooling(encoder.get_word_embedding_dimension(), "mean")])
with tempfile.TemporaryDirectory() as folder:
    body.save(folder)
    model = SetFitModel.from_pretrained(folder)
    arguments = TrainingArguments(
        output_dir=folder, max_steps=given["steps"], seed=given["seed"], save_strategy="no", report_to="none"
    )
    trainer = Trainer(model, arguments, train_dataset=Dataset.from_dict(given["train"]))
    trainer.train()
print(json.dumps(model.predict(given["test"], as_numpy=True).tolist()))
