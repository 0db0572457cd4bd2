"""The version of the package, which what is inside it reads here and others as ``pipeline.__version__``."""

VERSION = "0.1.0"
