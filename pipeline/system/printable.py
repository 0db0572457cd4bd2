"""Text that is safe to show in a terminal, a page and a picture, whatever file it came from."""

import re

# What XML 1.0 cannot hold, and the control characters that it can but a terminal would obey.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """``text`` with U+FFFD in place of each control character, lone surrogate and non-character.

    Tabs and line breaks stay.
    """
    return _UNPRINTABLE.sub("\ufffd", text)
