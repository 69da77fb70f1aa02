"""Wikipedia's XML dumps (``...-pages-articles.xml.bz2``): a page of the main namespace, a document.

A page is cut out of the dump by its tags before XML is parsed, which is safe because the text
between tags has no bare ``<``. So memory is bounded by a page, a damaged page spoils no other, and
there is no place for the declarations that entity bombs are made of.
"""

from __future__ import annotations

import html
import re
from typing import Any, FrozenSet, Iterator, Match, Tuple
from xml.etree import ElementTree

from amp_xla.errors import DataError

BEGIN, END = b"<page>", b"</page>"
BORDER = re.compile(rb"</page>\s*")
UNIT_BYTES = 8 << 20  # a second or more for each MB
PAGE_BYTES = 16 << 20  # MediaWiki allows 2 MiB before XML escapes
CHUNK = 1 << 20
HEAD_BYTES = 1 << 16  # the names of the namespaces stand there
# Media, files and categories: every wiki knows the English names, the local ones are in the head.
NAMESPACES = ("-2", "6", "14")
ENGLISH = ("media", "file", "image", "category")
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
# Not text; the library leaves out templates, comments, formulas and galleries by itself.
DROPPED = frozenset(
    ["ref", "table", "math", "chem", "timeline", "score", "syntaxhighlight", "source"]
)
_MAGIC = re.compile(r"__[A-Z]+__")
# -{zh-hans:计算机;zh-hant:電腦}- of the Chinese wiki; flags stand before a bar.
_VARIANTS = re.compile(r"-\{(?:([^|{}]*)\|)?([^{}]*)\}-")
_VARIANT = re.compile(r"(zh[a-z-]*)\s*:([^;]*)")
PREFERRED = ("zh-hans", "zh-cn", "zh")


def pages(file: Any, begin: int, end: int) -> Iterator[Tuple[int, bytes]]:
    """(byte offset, bytes) of the pages that begin from ``begin`` on and before ``end``.

    One that does not end is cut where the next one begins, or at ``PAGE_BYTES``.
    """
    file.seek(begin)
    kept, position, more = b"", begin, True
    while True:
        start = kept.find(BEGIN)
        if start < 0:
            rest = min(len(kept), len(BEGIN) - 1)
            kept, position = kept[len(kept) - rest :], position + len(kept) - rest
            if position >= end:
                return
        else:
            kept, position = kept[start:], position + start
            if position >= end:
                return
            stop = kept.find(END)
            following = kept.find(BEGIN, len(BEGIN), None if stop < 0 else stop)
            stop = stop + len(END) if following < 0 <= stop else following
            if stop < 0 and (len(kept) > PAGE_BYTES or not more):
                stop = min(len(kept), PAGE_BYTES)
            if stop >= 0:
                yield position, kept[:stop]
                kept, position = kept[stop:], position + stop
                continue
        if not more:
            return
        data = file.read(CHUNK)
        more, kept = bool(data), kept + data


def prefixes(head: bytes) -> FrozenSet[str]:
    """What links that are no text begin with, in lower case, by the first bytes of a dump."""
    found = {key.decode(): html.unescape(name.decode()) for key, name in _NAMESPACE.findall(head)}
    local = (found[key].lower() for key in NAMESPACES if key in found)
    return frozenset([*ENGLISH, *local])


def text_of(page: str, links: FrozenSet[str]) -> str:
    """The plain text of a ``<page>``; empty if it is a redirect or not of the main namespace.

    Args:
      page: XML.
      links: ``prefixes`` of its dump.

    Raises:
      ValueError: it is not whole, not XML, or has several revisions.
      DataError: the package mwparserfromhell is missing.
    """
    if not page.endswith(END.decode()):
        raise ValueError("a <page> without its </page>")
    try:
        found = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML ({error}, counted within the page)") from None
    namespace = found.findtext("ns")
    if namespace is None:
        raise ValueError("a <page> without <ns>, as in dumps from before 2012")
    if namespace != "0" or found.find("redirect") is not None:
        return ""
    revisions = found.findall("revision")
    if len(revisions) > 1:
        raise ValueError(
            f"page {found.findtext('title')!r} has {len(revisions)} revisions; needed is a dump "
            f"with the last of each, called pages-articles"
        )
    if not revisions or revisions[0].findtext("model", "wikitext") != "wikitext":
        return ""
    return plain(revisions[0].findtext("text") or "", links)


def plain(markup: str, links: FrozenSet[str]) -> str:
    """Wiki markup to text: a line each paragraph, heading and item of a list.

    Without templates, tables, references, formulas, files and categories; of Chinese variants the
    simplified one.
    """
    parser = _parser()
    try:
        code = parser.parse(_VARIANTS.sub(_one_variant, markup))
        for node in code.ifilter(forcetype=(parser.nodes.Tag, parser.nodes.Wikilink)):
            # Emptied in place: to remove a node means to look for it in the whole page.
            if isinstance(node, parser.nodes.Tag):
                if str(node.tag).strip().lower() in DROPPED:
                    node.contents = ""
            elif str(node.title).partition(":")[0].strip().lower() in links and ":" in node.title:
                node.title, node.text = "", None
        text = code.strip_code()
    except parser.parser.ParserError as error:
        raise ValueError(f"no wiki markup ({error})") from None
    lines = (line.strip() for line in _MAGIC.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


def _one_variant(found: Match[str]) -> str:
    flags, body = found.groups()
    if flags and set(flags) & set("HT-"):  # a rule for elsewhere, or for the title
        return ""
    words = dict(_VARIANT.findall(body))
    return next((words[name] for name in (*PREFERRED, *words) if name in words), body)


def _parser() -> Any:
    try:
        import mwparserfromhell
    except ImportError:
        raise DataError(
            "reading a Wikipedia dump needs the package mwparserfromhell "
            "(pip install mwparserfromhell)"
        ) from None
    return mwparserfromhell
