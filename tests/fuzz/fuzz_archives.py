"""Archives that are nearly what an export writes."""

import tarfile
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tests.fuzz.fuzz_documents import ODD_TEXTS, damaged_bytes
from tests.tars import Member

kinds = st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"?"])


@st.composite
def faulty(
    draw: st.DrawFn,
    usual: Sequence[Member],
    odd_names: st.SearchStrategy[str],
    document: str,
    changed: Callable[[list[Member], str], st.SearchStrategy[bytes]],
) -> list[Member]:
    """The members of an export with up to three faults.

    Args:
        odd_names: of members that are renamed or added.
        document: how the names of those members end whose content ``changed`` draws, given all members and the name
            of one.
    """
    members = list(usual)
    for _ in range(draw(st.integers(0, 3))):
        if not members:
            break
        at = draw(st.integers(0, len(members) - 1))
        member = members[at]
        match draw(st.sampled_from(["document", "document", "name", "drop", "add", "twice", "kind", "content"])):
            case "document":
                documents = [index for index, each in enumerate(members) if each.name.endswith(document)]
                at = draw(st.sampled_from(documents or [at]))
                members[at] = members[at]._replace(content=draw(changed(members, members[at].name)))
            case "name":
                members[at] = member._replace(name=draw(odd_names | st.sampled_from(ODD_TEXTS[:3] + ODD_TEXTS[10:])))
            case "drop":
                del members[at]
            case "add":
                members.append(Member(draw(odd_names), draw(st.binary(max_size=8) | st.just(bytes(2**20)))))
            case "twice":
                members.append(member._replace(content=draw(st.just(member.content) | st.binary(max_size=4))))
            case "kind":
                members[at] = Member(member.name, b"", draw(kinds), draw(odd_names))
            case "content":
                members[at] = member._replace(content=draw(damaged_bytes(st.just(member.content))))
    return members
