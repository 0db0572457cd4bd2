"""What is trained and what is compared: recipes and studies, read from TOML."""
