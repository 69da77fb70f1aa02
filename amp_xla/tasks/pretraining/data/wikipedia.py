"""Wikipedia's XML dumps (``...-pages-articles.xml.bz2``): each article is a document.

Pages are cut out of the dump at their tags, before XML is parsed; in XML, text never contains a
bare ``<``. So a damaged page does not affect others, and a page cannot declare entities that expand
without limit. The tags of a page are at the beginning and at the end of lines, as in all dumps.
"""

from __future__ import annotations

import html
import re
from typing import FrozenSet, Iterable, Iterator, Match, Tuple
from xml.etree import ElementTree

from amp_xla.data.text.lines import extra

PAGE_BYTES = 16 << 20  # MediaWiki allows 2 MiB, which XML escapes make longer
# Numbers of media, files and categories. English names work in every wiki; the head of a dump has
# the local names.
NAMESPACES = ("-2", "6", "14")
ENGLISH = ("media", "file", "image", "category")
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
# Tags whose content is no text. The library already leaves out templates, comments and galleries.
DROPPED = frozenset(
    ["ref", "table", "math", "chem", "timeline", "score", "syntaxhighlight", "source"]
)
_MAGIC = re.compile(r"__[A-Z]+__")
# -{zh-hans:计算机;zh-hant:電腦}- in the Chinese wiki, optionally with flags before a bar.
_VARIANTS = re.compile(r"-\{(?:([^|{}]*)\|)?([^{}]*)\}-")
_VARIANT = re.compile(r"(zh[a-z-]*)\s*:([^;]*)")
PREFERRED = ("zh-hans", "zh-cn", "zh")


def pages(lines: Iterable[Tuple[int, bytes]]) -> Iterator[Tuple[int, bytes]]:
    """Yield (byte offset, bytes) of each page in a dump's lines; an open one ends at the next."""
    begin, page = 0, bytearray()
    for start, line in lines:
        tag = line.find(b"<page>")
        if tag >= 0:
            if page:
                yield begin, bytes(page)
            begin, page = start + tag, bytearray(line[tag:])
        elif page:
            page += line
        if page and b"</page>" in line:
            yield begin, bytes(page)
            page.clear()
    if page:
        yield begin, bytes(page)


def prefixes(head: bytes) -> FrozenSet[str]:
    """Return the prefixes of links to leave out, in lower case; ``head`` is the start of a dump."""
    names = {key.decode(): html.unescape(name.decode()) for key, name in _NAMESPACE.findall(head)}
    local = (names[key].lower() for key in NAMESPACES if key in names)
    return frozenset([*ENGLISH, *local])


def text_of(page: str, links: FrozenSet[str]) -> str:
    """Return the plain text of a ``<page>``; redirects and pages of other namespaces have none.

    ``links`` are the prefixes of links to leave out; see ``prefixes``.

    Raises:
      ValueError: the page is incomplete, is not XML, or has several revisions.
      DataError: the package mwparserfromhell is missing.
    """
    page = page.rstrip()
    if not page.endswith("</page>") or len(page) > PAGE_BYTES:
        raise ValueError("a <page> without its </page> within 16 MiB")
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML ({error}, counted within the page)") from None
    namespace = root.findtext("ns")
    if namespace is None:
        raise ValueError("a <page> without <ns>, as in dumps from before 2012")
    if namespace != "0" or root.find("redirect") is not None:
        return ""
    revisions = root.findall("revision")
    if len(revisions) > 1:
        raise ValueError(
            f"page {root.findtext('title')!r} has {len(revisions)} revisions; use the "
            "pages-articles dump, which has only the last one"
        )
    if not revisions or revisions[0].findtext("model", "wikitext") != "wikitext":
        return ""
    return plain(revisions[0].findtext("text") or "", links)


def plain(markup: str, links: FrozenSet[str]) -> str:
    """Return the text of wiki markup, with one line per paragraph, heading and list item.

    Templates, tables, references, formulas, files and categories are left out. Among Chinese
    variants, the simplified one is used.
    """
    parser = extra("mwparserfromhell", "reading a Wikipedia dump")
    try:
        code = parser.parse(_VARIANTS.sub(_one_variant, markup))
        for node in code.ifilter(forcetype=(parser.nodes.Tag, parser.nodes.Wikilink)):
            # Empty it in place, since removing a node would search the whole page.
            if isinstance(node, parser.nodes.Tag):
                if str(node.tag).strip().lower() in DROPPED:
                    node.contents = ""
            elif str(node.title).partition(":")[0].strip().lower() in links and ":" in node.title:
                node.title, node.text = "", None
        text = code.strip_code()
    except parser.parser.ParserError as error:
        raise ValueError(f"not wiki markup ({error})") from None
    lines = (line.strip() for line in _MAGIC.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


def _one_variant(match: Match[str]) -> str:
    flags, body = match.groups()
    if flags and set(flags) & set("HT-"):  # a rule for the title or for other places
        return ""
    words = dict(_VARIANT.findall(body))
    return next((words[name] for name in (*PREFERRED, *words) if name in words), body)
