"""Trained models as folders for other programs: ONNX, AdapterHub, transformers; checked, described, and published."""
