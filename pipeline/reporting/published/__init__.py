"""Published reports beside studies that reproduce them.

``values.csv`` has their tables, ``settings.csv`` how each row was trained, ``absent.csv`` what no study reproduces, and
``reports.toml`` the data and columns of each report.
"""
