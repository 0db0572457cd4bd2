"""Backbone, encoder and heads, and every change to a live model beyond AdapterHub's own modules.

| patch | what it changes | how it is undone |
| --- | --- | --- |
| :mod:`lean` | ``forward`` of self-attention, the class of dropout, a hook on its output | not; adapts if repeated |
| lower or upper layers (:mod:`layout`) | the list of layers and the embeddings, for one call | when the call ends |
| LayerNorms by task | ``forward`` of a LayerNorm, to that of the active task's copy | another task is activated |
| PAL, prefix | hooks on a layer, its LN2, its attention, keys and values | another task is activated |
| fast fusion | ``compose_fuse`` of AdapterHub's sites | ``use_fusion_implementation(..., "stock")`` |
| anchored fusion | AdapterHub's fusion layers, each replaced by an anchored one | ``delete_adapter_fusion`` |
| parallel adapters | ``compose_parallel`` of AdapterHub's sites | not; the model is for evaluation |
| prefix tuning | the pool of prefixes is no child of its layers while it is saved | when it is saved |

The first two stand here; each of the others serves one method and stands in its file of ``pipeline/methods``.
"Another task" includes one without modules, for which sites do nothing (:func:`~pipeline.models.switching.activate`).
No patch renames a parameter. Hooks and replaced methods of a deep copy belong to the copy.
"""
