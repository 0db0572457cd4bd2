"""One training run from request to record, and the models that finished runs kept."""
