"""Files or Hub into one canonical form, checked, tokenised once, and batched by length."""
