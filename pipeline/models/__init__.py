"""Backbone, encoder, heads, and the methods that adapt them."""
