"""Bodies of requests: the forms that text-embeddings-inference has, and one message for each that is not one."""

from typing import Any

import pytest

from stages.explain import Answer
from stages.serve.bodies import PredictBody, Refused, parse, texts_of


@pytest.mark.parametrize(
    ("inputs", "is_pair", "texts", "single"),
    [
        ("a", False, ["a"], True),
        (["a"], False, ["a"], False),
        (["a", "b"], False, ["a", "b"], False),
        ([["a"], ["b"]], False, ["a", "b"], False),
        (["a", "b"], True, [["a", "b"]], True),
        ([["a", "b"]], True, [["a", "b"]], False),
        ([["a", "b"], ["c", "d"]], True, [["a", "b"], ["c", "d"]], False),
        # What does not fit is left as it is: the model says what it reads.
        ("a", True, ["a"], True),
        ([["a", "b"]], False, [["a", "b"]], False),
        ([["a", "b"], "c"], True, [["a", "b"], "c"], False),
        ([1, None], False, [1, None], False),
    ],
    ids=str,
)
def test_inputs_are_one_or_several_as_the_task_reads_them(
    inputs: Any, is_pair: bool, texts: list[Any], single: bool
) -> None:
    assert texts_of(inputs, is_pair) == (texts, single)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is not JSON: Expecting value"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b"\xff\xfe\x00", "the body is not JSON: "),
        (b"[" * 100_000, "the body is not JSON: nested too deeply"),
        (b"1" * 5000, "the body is not JSON: Exceeds the limit"),
        (b'"a text"', "the body is 'a text': write an object"),
        (b"[]", r"the body is \[\]: write an object"),
        (b"{}", "inputs: missing"),
        (b'{"inputs": "a", "truncate": "yes"}', "truncate: Input should be a valid boolean"),
        (b'{"inputs": "a", "raw_scores": 1}', "raw_scores: Input should be a valid boolean"),
    ],
)
def test_a_body_that_is_none_is_refused_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        parse(PredictBody, content)
    assert (refused.value.status, "\n" in refused.value.message) == (422, False)


@pytest.mark.parametrize("inputs", [None, 7, {"words": "a"}, True, []])
def test_inputs_without_a_text_are_refused(inputs: Any) -> None:
    with pytest.raises(Refused, match="inputs is "):
        texts_of(inputs, is_pair=False)


def test_an_answer_lists_its_labels_the_highest_first_and_equal_ones_in_order() -> None:
    answer = Answer({"a": 0.2, "b": 0.4, "c": 0.4}, {"a": 3.0, "b": -1.0, "c": 0.0})
    assert [each["label"] for each in answer.listed()] == ["b", "c", "a"]
    assert answer.listed("none") == [
        {"label": "a", "score": 3.0}, {"label": "c", "score": 0.0}, {"label": "b", "score": -1.0},
    ]  # fmt: skip
