"""The methods that adapt an encoder: adapters and other modules, and fusion over them."""
