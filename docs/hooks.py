"""Links of the pages to files outside ``docs/``, such as reports, which the web site does not hold."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """They lead to the repository where mkdocs.yml names one (``repo_url``); else the file's path takes their place."""

    def outside(link: re.Match[str]) -> str:
        text, path, anchor = link.group(1), link.group(2), link.group(3) or ""
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})"
        return f"{text} (`{path}`)"

    return _OUTSIDE.sub(outside, markdown)
