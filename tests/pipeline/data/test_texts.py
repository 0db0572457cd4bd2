"""Words are counted as their script writes them."""

import pytest

from pipeline.data.texts import count_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" a good\tfilm ", 3),
        ("un film tr\u00e8s  bon", 4),
        ("\ud55c\uad6d \uc601\ud654", 2),  # Korean has spaces
        ("\u6211\u559c\u6b22BERT\u6a21\u578b v2", 7),
        ("\u0e14\u0e35 \u0e14\u0e35", 4),
        ("\u4e00\U00020000", 2),
        ("\U0001f600 \U0001f600\U0001f600", 2),
    ],
)
def test_a_character_is_a_word_where_a_script_has_no_spaces(text: str, words: int) -> None:
    assert count_words(text) == words
