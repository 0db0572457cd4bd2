"""Backbone, encoder and heads. docs/development.md lists how live models are patched, and how each patch is undone."""
