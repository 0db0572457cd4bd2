"""Backbone, encoder and heads. docs/development.md lists what is changed in live models, and how it is undone."""
