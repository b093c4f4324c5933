"""Text is taken apart as tantivy does it, and in vectors as one by one; an index of tantivy finds what standing queries find."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
import tantivy
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import UsageError
from headwater.core.text_analysis import LANGUAGES, Analysis, Lexicon
from headwater.operators.percolator import query_reference
from headwater.operators.percolator.fields import Field, Fields
from headwater.operators.percolator.lucene_syntax import parse
from headwater.operators.percolator.query_index import QueryIndex
from headwater.operators.percolator.tokens import tokens_of
from tests.raising import raises

ANALYSES = [Analysis(), Analysis("english"), Analysis("german", accents=False), Analysis(accents=False)]
some_text = st.text(max_size=40) | st.text(alphabet="aB é-ßİ.नमस्ते௹²x", max_size=120)


@given(st.lists(st.none() | some_text, max_size=8), st.sampled_from(ANALYSES))
def test_vectors_say_what_tantivy_says(texts: list[str | None], analysis: Analysis) -> None:
    fields = Fields.of(pa.schema([("t", pa.string())]), analysis=analysis)
    lexicon = Lexicon(analysis)
    made = tokens_of(fields.columns[0], pa.array(texts, pa.string()), lexicon)
    columns = zip(made.row, made.position, made.start, made.end, made.code, strict=True)
    words, terms = lexicon.words, lexicon.terms
    found = [(row, p, s, e, words[made.lexemes[c]], terms[made.lexemes[c]]) for row, p, s, e, c in columns]
    assert found == [(row, *word) for row, text in enumerate(texts) for word in analysis.words(text or "")]


@given(st.lists(st.none() | st.lists(st.none() | some_text, max_size=3), max_size=4), st.booleans())
def test_lists_are_texts_with_gaps(lists: list[list[str | None] | None], keyword: bool) -> None:
    schema = pa.schema([("t", pa.list_(pa.string()))])
    fields = Fields.of(schema, text=[] if keyword else ["t"])
    rows = pa.table([pa.array(lists, schema.field("t").type)], schema=schema)
    lexicon = Lexicon(None if keyword else Analysis())
    made = tokens_of(fields.columns[0], rows.column("t").combine_chunks(), lexicon)
    words, terms = (
        np.array(its)[made.lexemes].tolist() for its in (lexicon.words or [""], lexicon.terms or [""])
    )
    columns = zip(made.row, made.item, made.position, made.start, made.end, made.code, strict=True)
    found = [(row, item, (p, s, e, words[c], terms[c])) for row, item, p, s, e, c in columns]
    documents = enumerate(query_reference.documents_of(fields, rows))
    assert found == [(row, item, tuple(word)) for row, one in documents for item, word in one.words["t"]]


def test_a_sliced_column_is_taken_apart_from_where_it_begins() -> None:
    field = Field("t", "text", pa.string())
    lexicon = Lexicon(Analysis())
    made = tokens_of(field, pa.array(["no", "ä b", None, "c"]).slice(1), lexicon)
    assert [lexicon.words[code] for code in made.lexemes[made.code]] == ["ä", "b", "c"]
    assert (made.row.tolist(), made.start.tolist(), made.end.tolist()) == ([0, 0, 2], [0, 2, 0], [1, 3, 1])


def test_what_lies_behind_a_null_list_is_not_seen() -> None:
    offsets = pa.array([0, 1, 3], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(["a", "hidden", "b"]), mask=pa.array([True, False]))
    lexicon = Lexicon(Analysis())
    made = tokens_of(Field("t", "text", lists.type), lists, lexicon)
    words = [lexicon.words[code] for code in made.lexemes[made.code]]
    assert (words, made.row.tolist()) == (["hidden", "b"], [1, 1])


def test_a_lexicon_is_bounded() -> None:
    lexicon = Lexicon(Analysis("english"), most=3)
    for words in (["Runs", "walks"], ["talks", "Runs"], ["sings", "walks"]):
        found = lexicon.look_up(words)
        assert [lexicon.words[one] for one in found] == [word.lower() for word in words]
        assert [lexicon.terms[one] for one in found] == [word.lower()[:-1] for word in words]
        assert len(lexicon.words) <= 3
    assert lexicon.generation == 1


def test_accents_decide_nothing_where_they_are_not_to_matter() -> None:
    folded = Analysis("french", accents=False)
    assert [word.term for word in folded.words("générales")] == [
        word.term for word in folded.words("generales")
    ]
    assert folded.normal("Éco") == "eco"
    assert Analysis("french").normal("Éco") == "éco"


def test_a_language_that_is_not_there_is_refused() -> None:
    assert all(Analysis(language).words("a") for language in LANGUAGES)
    with raises(UsageError, language="klingon"):
        Analysis("klingon")


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_a_search_index_finds_what_standing_queries_find(analysis: Analysis) -> None:
    """Terms and phrases, with slop too, over texts and lists of texts: the analysis is one and the same."""
    random = Random(5)
    words = ["Cafés", "cafe", "running", "runs", "Straße", "strasse", "data", "Wi-Fi", "x" * 45]
    schema = pa.schema([("title", pa.string()), ("tags", pa.list_(pa.string()))])

    def text() -> str:
        return " ".join(random.choices(words, k=random.randint(0, 6)))

    rows = [{"title": text(), "tags": [text() for _ in range(random.randint(0, 3))]} for _ in range(60)]
    builder = tantivy.SchemaBuilder()
    for name in schema.names:
        builder.add_text_field(name, tokenizer_name=analysis.name)
    builder.add_unsigned_field("row", stored=True)
    index = tantivy.Index(builder.build())
    analysis.register(index)
    writer = index.writer(20_000_000, 1)
    for number, row in enumerate(rows):
        document = tantivy.Document(row=number, title=row["title"])
        for tag in row["tags"]:
            document.add_text("tags", tag)
        writer.add_document(document)
    writer.commit()
    index.reload()
    searcher = index.searcher()

    fields = Fields.of(schema, analysis=analysis)
    documents = list(query_reference.documents_of(fields, pa.Table.from_pylist(rows, schema=schema)))
    asked = [f"{name}:{word}" for name in schema.names for word in words[:-1]]
    asked += [f'{name}:"{a} {b}"' for name in schema.names for a in words[:-1] for b in words[:-1]]
    asked += [f'{name}:"{a} data"~2' for name in schema.names for a in words[:6]]
    matches = 0
    for query in asked:
        hits = searcher.search(index.parse_query(query, ["title"]), 100).hits
        there = {searcher.doc(address)["row"][0] for _, address in hits}
        parsed = parse(query, fields)
        mine = {
            number for number, one in enumerate(documents) if query_reference.match(parsed, one) is not None
        }
        assert mine == there, query
        matches += len(mine)
    assert matches > 500


TOLD = {
    "arabic": "الكتاب كتابهم والكتب",
    "danish": "løberen løber løb",
    "dutch": "lichaam lichamelijk lichamen",
    "english": "running runs runner ran",
    "finnish": "talossa talot talo",
    "french": "mangeons mangerez générales général",
    "german": "Häuser Hauses häuslich",
    "greek": "άνθρωπος ανθρώπου άνθρωποι",
    "hungarian": "házak házban ház",
    "italian": "mangiare mangiando città",
    "norwegian": "bøkene bøker bok",
    "portuguese": "coração correndo corria",
    "romanian": "copiilor copii copilul",
    "russian": "книги книгами книга",
    "spanish": "corriendo corrió canción canciones",
    "swedish": "husen husets hus",
    "tamil": "புத்தகங்கள் புத்தகம்",
    "turkish": "kitaplar kitaplarda kitap",
}


@pytest.mark.parametrize("accents", [True, False])
def test_in_every_language_words_meet_as_in_a_search_index(accents: bool) -> None:
    """Each word of a language is looked for in documents of one word each, by both."""
    assert set(TOLD) == set(LANGUAGES)
    schema = pa.schema([("t", pa.string())])
    alone: set[str] = set()
    for language, told in TOLD.items():
        analysis, words = Analysis(language, accents=accents), told.split()
        words += [word.upper() for word in words]
        builder = tantivy.SchemaBuilder().add_text_field("t", tokenizer_name=analysis.name)
        index = tantivy.Index(builder.add_unsigned_field("row", stored=True).build())
        analysis.register(index)
        writer = index.writer(15_000_000, 1)
        for row, word in enumerate(words):
            writer.add_document(tantivy.Document(row=row, t=word))
        writer.commit()
        index.reload()
        searcher, fields = index.searcher(), Fields.of(schema, analysis=analysis)
        standing = QueryIndex(fields)
        for row, word in enumerate(words):
            standing.put(str(row), parse(word, fields))
        found = standing.match(pa.table([words], schema=schema)).to_pylist()
        mine = {(int(match["query"]), match["row"]) for match in found}
        there = {
            (row, searcher.doc(address)["row"][0])
            for row, word in enumerate(words)
            for _, address in searcher.search(index.parse_query(word, ["t"]), 100).hits
        }
        assert mine == there, language
        if not any(words[query].lower() != words[row].lower() for query, row in mine):
            alone.add(language)
    assert alone == {"tamil"}  # whose words are cut at signs, and have other ends than stems
