"""The package's version. Code inside the package reads it here, other code as ``pipeline.__version__``."""

VERSION = "0.1.0"
