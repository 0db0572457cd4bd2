"""What to train and what to compare: recipes and studies, read from TOML."""
