"""The extras of the package: libraries that only some verbs need."""

from importlib import import_module

from pipeline.system.errors import PipelineError


def need_extra(extra: str, what: str, *modules: str) -> None:
    """Raise a :class:`PipelineError` if one of the ``modules`` of ``extra``, which ``what`` needs, is not installed."""
    try:
        for module in modules:
            import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{what} needs {error.name}: install the extra, pip install 'adapter-fusion-pipeline[{extra}]'"
        ) from None
