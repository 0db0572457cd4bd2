"""Methods that adapt an encoder: adapters of many kinds, and fusion over them."""
