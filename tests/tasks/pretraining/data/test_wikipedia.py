"""Dumps as Wikipedia publishes them: articles become documents, and nothing else does."""

from __future__ import annotations

import bz2
import gzip
from html import escape

import pytest

from amp_xla.errors import DataError
from amp_xla.tasks.pretraining.data import wikipedia
from tests.tasks.pretraining.data.test_units import corpus_texts

pytest.importorskip("mwparserfromhell", reason="reading Wikipedia's dumps is an extra")

pytestmark = pytest.mark.once
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="zh">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">媒体</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">文件</namespace>
      <namespace key="14" case="first-letter">分类</namespace>
    </namespaces>
  </siteinfo>
"""
MARKUP = """{{Infobox person|name={{nowrap|Ada}}|born=1815}}
'''Ada Lovelace''' was a [[Mathematics|mathematician]] & ''writer''.<ref name="a">{{cite|x}} Page
9</ref> She knew [[Charles Babbage]]<ref name="a" /> and [https://x.example a page].<!-- hidden -->

== Life ==
[[File:Ada.jpg|thumb|A [[portrait]] of hers]][[文件:艾达.jpg|thumb|肖像]]
* Her first program
* 数学家
{| class="wikitable"
! Year
|-
| 1843 || {{yes}}
|}
<gallery>
File:Ada.jpg|Again
</gallery>
Where <math>x^2</math> is < 4. __NOTOC__
[[Category:Mathematicians]][[分类:数学家]]
"""
PLAIN = """Ada Lovelace was a mathematician & writer. She knew Charles Babbage and a page.
Life
Her first program
数学家
Where  is < 4."""


def page(title, text, ns=0, redirect="", model="wikitext", revisions=1):
    revision = f"""    <revision>
      <id>7</id>
      <model>{model}</model>
      <text bytes="9" xml:space="preserve">{escape(text, quote=False)}</text>
    </revision>
"""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{ns}</ns>
    <id>1</id>
{redirect and f'    <redirect title="{redirect}" />'}
{revision * revisions}  </page>
"""


OTHERS = [
    page("Lovelace", "#REDIRECT [[Ada Lovelace]]", redirect="Ada Lovelace"),
    page("Talk:Ada Lovelace", "I like her.", ns=1),
    page("Template:Yes", "{{{1|yes}}}", ns=10),
    page("Some.json", '{"a": 1}', model="json"),
    page("Empty", ""),
]


def dump(*pages):
    return (HEAD + "".join(pages) + "</mediawiki>\n").encode("utf-8")


def many(count):
    """A dump, and its articles' texts: every size up to some thousand characters."""
    words = [f"Article {i} says {'so much and ' * (i * 37 % 300)}ends." for i in range(count)]
    parts = [page(f"Number {i}", f"'''{text[:7]}'''{text[7:]}") for i, text in enumerate(words)]
    parts[5:5] = OTHERS
    return dump(*parts), words


def test_one_variant_of_chinese_stays():
    markup = "-{H|zh-cn:不}-一台-{zh-hans:计算机;zh-hant:電腦}-用-{A|zh-tw:軟; zh-cn:软}--{原}-。"
    assert wikipedia.plain(markup, frozenset()) == "一台计算机用软原。"
    assert wikipedia.plain("a -{zh-tw:乙;zh-hk:丙}- {b} -{c", frozenset()) == "a 乙 {b} -{c"


def test_an_article_is_its_text(tmp_path):
    path = tmp_path / "zhwiki-20261101-pages-articles.xml"
    path.write_bytes(dump(*OTHERS, page("Ada Lovelace", MARKUP), *OTHERS))
    assert corpus_texts(tmp_path) == [PLAIN]


@pytest.mark.parametrize(
    "packed, unit",
    [("", 1), ("", 100), (".bz2", 4096), (".gz", 1 << 20), ("multistream.bz2", 4096)],
)
def test_units_cut_anywhere_and_pages_stay_whole(tmp_path, monkeypatch, packed, unit):
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.units.UNIT_BYTES", (unit, unit))
    data, words = many(9 if unit == 1 else 60)
    if packed == "multistream.bz2":  # as Wikipedia's: streams of some pages each, end to end
        data = b"".join(bz2.compress(data[i : i + 3000]) for i in range(0, len(data), 3000))
    elif packed:
        data = {".bz2": bz2, ".gz": gzip}[packed].compress(data)
    path = tmp_path / f"enwiki-pages-articles.xml{'.bz2' if packed.endswith('bz2') else packed}"
    path.write_bytes(data)
    assert corpus_texts(path) == words


BROKEN = {
    "a tag": (lambda p: p.replace("</revision>", "</revisoin>"), "not XML .mismatched tag"),
    "no end": (lambda p: p.replace("</page>", ""), "a <page> without its </page>"),
    "a bomb": (
        lambda p: p.replace("<title>", '<!DOCTYPE a [<!ENTITY b "b">]><title>&b;'),
        "not XML",
    ),
    "an old dump": (lambda p: p.replace("<ns>0</ns>", ""), "a <page> without <ns>"),
    "history": (lambda _: page("Two", "a", revisions=2), "page 'Two' has 2 revisions.*articles"),
    "a byte": (lambda p: p.replace("<title>", "<title>\udcff"), "is not UTF-8: byte 19 is 0xff"),
}


@pytest.mark.parametrize("kind, packed", zip(sorted(BROKEN), ["", ".bz2"] * 4))
def test_a_damaged_page_is_named_or_left_out(tmp_path, monkeypatch, kind, packed):
    monkeypatch.setattr("amp_xla.tasks.pretraining.data.units.UNIT_BYTES", (300, 300))
    change, message = BROKEN[kind]
    parts = [page("One", "The first."), change(page("Two", "The second.")), page("Three", "Last.")]
    data = (HEAD + "".join(parts) + "</mediawiki>\n").encode("utf-8", "surrogateescape")
    at = data.index(b"<page>", data.index(b"</page>"))
    path = tmp_path / f"a.xml{packed}"
    path.write_bytes(bz2.compress(data) if packed else data)
    with pytest.raises(DataError, match=rf"a\.xml.*, byte {at}: {message}.*--on-bad-line skip"):
        corpus_texts(path)
    assert corpus_texts(path, on_bad_line="skip") == ["The first.", "Last."]


def test_a_dump_that_breaks_off_is_named(tmp_path):
    packed = tmp_path / "b.xml.bz2"
    packed.write_bytes(bz2.compress(many(60)[0])[:-200])
    with pytest.raises(DataError, match=r"b\.xml\.bz2: damaged bz2 file"):
        corpus_texts(packed)
