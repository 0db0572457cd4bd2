"""What the pages of ``docs/`` have from elsewhere: parts of README.md, and links to files outside the site."""

import re
from pathlib import Path
from typing import Any

_PART = re.compile(r'^--8<-- "README\.md:([\w-]+)"$', re.MULTILINE)
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Put in parts of README.md. Links to files outside ``docs/``, such as reports, lead to the repository where
    mkdocs.yml names one (``repo_url``); else the file's path takes their place.
    """
    readme = (Path(config.docs_dir).parent / "README.md").read_text(encoding="utf-8")

    def part(found: re.Match[str]) -> str:
        start, end = (f"<!-- {found[1]}: {edge} -->\n" for edge in ("start", "end"))
        text = readme.partition(start)[2].partition(end)[0]
        return re.sub(r"\]\(docs/", "](", re.sub(r"\]\((?!https:|docs/|#)", "](../", text))

    def outside(link: re.Match[str]) -> str:
        text, path, anchor = link.group(1), link.group(2), link.group(3) or ""
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})"
        return f"{text} (`{path}`)"

    return _OUTSIDE.sub(outside, _PART.sub(part, markdown))
