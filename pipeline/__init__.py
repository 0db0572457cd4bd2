"""The parts every stage is built from: tasks, data, models, training, store, ledger, reporting."""

__version__ = "0.1.0"
