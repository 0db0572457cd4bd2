"""Documents that are nearly valid: drawn from a model's schema or a real one, then damaged, and written as text."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic import BaseModel

Document = dict[str, Any]
Syntax = Literal["toml", "json"]


@dataclass(frozen=True)
class Raw:
    """Text that stands in the written document as it is."""

    text: str

    def __repr__(self) -> str:
        return f"Raw({self.text!r})" if len(self.text) < 60 else f"Raw({self.text[:20]!r}... {len(self.text)} letters)"


DEPTH = 100_000
NAMES = ["sst", "sts", "quora", "sick", "full", "adapter", "fusion", "sequential", "multitask", "row-1"]
ODD_TEXTS = [
    "", " ", "\0", "\x1b[31m", "a\nb", "a\rb", "\x7f", "\u202e", "\ufeff", "\ud800", "e\u0301", "ѕst", "ｓｓｔ", "ſst",
    "🙂", ".", "..", "../up", "a/b", "*", "[a-z]*", "~", "null", "nan", "true", "-1", "1e9", "--help", "{}", "%s",
    "a,b", "a@b", "x.toml", "con", "SST", "0", "0-999", "5-1", "a" * 5000, "1" * 5000, "<svg>", "&amp;", "`", "|",
    "$x$", "\\",
]  # fmt: skip
ODD_NUMBERS = [
    0, -1, 1, 2, 3, 2**31, 2**32, 2**63, 2**64, 10**30, 10**400, 0.5, -0.0, 5e-324, 1e-9, 1e31, 1.7e308, math.nan,
    math.inf, -math.inf, True, False,
]  # fmt: skip
# Each is a value in TOML or in JSON, or in both.
ODD_RAWS = [
    Raw("1" * 5000), Raw("-" + "1" * 5000), Raw("0x" + "f" * 5000), Raw("1e400"), Raw("1." + "1" * 5000),
    Raw("1979-05-27T07:32:00Z"), Raw("1979-05-27"), Raw("07:32:00"), Raw('{"a": 1, "a": 2}'), Raw("'''\n'''"),
    Raw("[" * DEPTH + "]" * DEPTH), Raw("[" * 400 + "]" * 400), Raw("{a = " * 400 + "1" + "}" * 400),
    Raw('{"a": ' * 400 + "1" + "}" * 400), Raw('{"a": ' * DEPTH + "1" + "}" * DEPTH), Raw("]"), Raw('"'), Raw("null"),
]  # fmt: skip

texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=12) | st.sampled_from(NAMES)
odd_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.sampled_from(ODD_NUMBERS) | st.sampled_from(ODD_RAWS) | texts | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)


def near_valid(
    model: type[BaseModel], documents: Sequence[Document] = (), free: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[Document]:
    """One of ``documents``, or nothing, with some keys of ``model`` set anew and up to three faults.

    Args:
        free: what stands where the model allows anything.
    """
    return damaged(_overlaid(list(documents), valid(model, free)))


@st.composite
def _overlaid(draw: st.DrawFn, documents: list[Document], values: st.SearchStrategy[Document]) -> Document:
    drawn = draw(values)
    if not documents:
        return drawn
    base = copy.deepcopy(draw(st.sampled_from(documents)))
    for key in draw(st.lists(st.sampled_from(sorted(drawn)), max_size=3, unique=True)) if drawn else ():
        base[key] = drawn[key]
    return base


@st.composite
def damaged(draw: st.DrawFn, documents: st.SearchStrategy[Document]) -> Document:
    """A document with up to three of its values, keys or places changed."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        _damage(draw, holder, key, [inner[where] for inner, where in places])
    return document


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every value below ``node`` as its holder and its key there."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [place for key in keys for place in ((node, key), *_places(node[key]))]


def _damage(draw: st.DrawFn, holder: Any, key: Any, others: list[Any]) -> None:
    fault = draw(st.sampled_from(["replace", "replace", "replace", "other", "drop", "rename", "add", "wrap", "twice"]))
    if fault == "replace":
        holder[key] = draw(odd_values)
    elif fault == "other":  # the right value in the wrong place
        holder[key] = copy.deepcopy(draw(st.sampled_from(others)))
    elif fault == "drop":
        del holder[key]
    elif fault == "wrap":
        holder[key] = draw(st.sampled_from([[holder[key]], {"a": holder[key]}]))
    elif isinstance(holder, dict):
        holder[draw(texts)] = holder.pop(key) if fault == "rename" else draw(odd_values)
    else:
        holder.append(copy.deepcopy(holder[key]))


# What a model's schema allows.

_ANYTHING = st.dictionaries(texts, st.integers(), max_size=2)


def valid(model: type[BaseModel], free: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Document]:
    """Documents of the keys and types of ``model``; what holds between keys, they may break."""
    schema = model.model_json_schema()
    return _of_schema(schema, schema.get("$defs", {}), _ANYTHING if free is None else free)


def _of_schema(schema: Mapping[str, Any], named: Mapping[str, Any], free: st.SearchStrategy[Any]) -> Any:
    def inner(part: Mapping[str, Any]) -> st.SearchStrategy[Any]:
        return _of_schema(part, named, free)

    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: inner(named[name]))
    if "anyOf" in schema:
        return st.one_of([inner(part) for part in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            low = schema.get("minimum", 0)
            return st.integers(low, max(low, min(low + 12, schema.get("maximum", low + 12))))
        case "number":
            return st.sampled_from([0.1, 0.5, 1.0, 1e-3, 2, 0])
        case "string":
            return st.sampled_from(NAMES) if "pattern" in schema else st.sampled_from(NAMES) | texts
        case "array":
            return _array(schema, inner)
        case "object":
            return _object(schema, inner, free)
    return free


def _array(schema: Mapping[str, Any], inner: Any) -> st.SearchStrategy[list[Any]]:
    if "prefixItems" in schema:
        return st.tuples(*map(inner, schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    return st.lists(inner(schema.get("items", {})), min_size=least, max_size=least + 2, unique_by=repr)


def _object(schema: Mapping[str, Any], inner: Any, free: st.SearchStrategy[Any]) -> st.SearchStrategy[Document]:
    if "properties" in schema:
        keys = {name: inner(part) for name, part in schema["properties"].items()}
        required = {name: keys.pop(name) for name in schema.get("required", ())}
        some = st.lists(st.sampled_from(sorted(keys)), max_size=5, unique=True) if keys else st.just([])
        return some.flatmap(lambda chosen: st.fixed_dictionaries({**required, **{name: keys[name] for name in chosen}}))
    patterns = list(schema.get("patternProperties", {}).values())
    values = patterns[0] if patterns else schema.get("additionalProperties", True)
    return free if values is True else st.dictionaries(st.sampled_from(NAMES), inner(values), max_size=2)


# Documents as text.


def as_bytes(document: Any, syntax: Syntax) -> bytes:
    """The document as a file: what its syntax has no value for is written as well as can be, and is a fault then."""
    if syntax == "json":
        text = _value(document, syntax)
    else:
        text = "".join(f"{_text(k, syntax)} = {_value(v, syntax)}\n" for k, v in document.items() if v is not None)
    return text.encode("utf-8", errors="surrogatepass")


def _value(value: Any, syntax: Syntax) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        sign = " = " if syntax == "toml" else ": "
        kept = {key: item for key, item in value.items() if item is not None or syntax == "json"}
        return "{" + ", ".join(f"{_text(key, syntax)}{sign}{_value(item, syntax)}" for key, item in kept.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item, syntax) for item in value) + "]"
    if isinstance(value, str):
        return _text(value, syntax)
    if isinstance(value, float) and syntax == "toml" and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


def _text(text: str, syntax: Syntax) -> str:
    if syntax == "json":
        return json.dumps(text)  # spells half a surrogate pair, too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# Bytes.


@st.composite
def damaged_bytes(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> bytes:
    """A file's bytes: cut, with bytes changed, put in or left out, or others altogether."""
    content = bytearray(draw(contents))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=64))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        fault = draw(st.sampled_from(["flip", "flip", "cut", "put", "drop"]))
        if fault == "flip" and at < len(content):
            content[at] ^= draw(st.integers(1, 255))
        elif fault == "cut":
            del content[at:]
        elif fault == "put":
            content[at:at] = draw(
                st.binary(max_size=8) | st.sampled_from([b"\0", b'"', b"\xff", b"\xef\xbb\xbf", b"\r"])
            )
        else:
            del content[at : at + draw(st.integers(1, 16))]
    return bytes(content)


def files(documents: st.SearchStrategy[Document], syntax: Syntax) -> st.SearchStrategy[bytes]:
    """The bytes of such a document's file, one in three of them damaged."""
    whole = documents.map(lambda document: as_bytes(document, syntax))
    return whole | whole | damaged_bytes(whole)
