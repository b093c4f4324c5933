"""Tokenizing of text into words and terms: one definition, for search indexes and for standing queries.

Text is split into words at everything that is neither a letter nor a digit; words of 40 bytes and more are skipped, but count
as positions. A word is lower case, without accents if these are to be ignored; its term is its stem in the language, if there
is one. Comparisons use terms; patterns match words. tantivy does all the analysis, so that its own indexes and results computed
without an index agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headwater.core.errors import UsageError
from headwater.core.extras import require

if TYPE_CHECKING:
    import tantivy

LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish"),
)
WORD_BYTES = 40
"""Words of this many bytes or more, as they are written, are skipped."""


class TextWord(NamedTuple):
    """A word of a text: its number, its span in characters, its normalised form, and its term."""

    position: int
    start: int
    end: int
    word: str
    term: str


@dataclass(frozen=True)
class Analysis:
    """Settings of the analysis: `language` reduces words to stems; `accents=False` treats é as e.

    Accents are removed before stemming, so that they do not affect the stem.
    """

    language: str | None = None
    accents: bool = True

    def __post_init__(self) -> None:
        if self.language is not None and self.language not in LANGUAGES:
            raise UsageError(
                f"language {self.language!r} is not supported by text search",
                hint=f"use one of {', '.join(LANGUAGES)}",
                language=self.language,
            )

    @property
    def name(self) -> str:
        """Name of this analysis in an index of tantivy."""
        stems = "default" if self.language is None else f"stemmed_{self.language}"
        return stems if self.accents else f"{stems}_folded"

    def register(self, index: tantivy.Index) -> None:
        """Register the analyzer with an opened tantivy index, which stores only its name."""
        if self.name != "default":
            index.register_tokenizer(self.name, self.analyzer())

    def analyzer(self, *, stems: bool = True, whole: bool = False) -> tantivy.TextAnalyzer:
        """Return the analyzer that produces terms, or words without `stems`; `whole` treats the text as one word of any
        length."""
        require("search", "text analysis")
        import tantivy

        filters = tantivy.Filter
        if whole:
            made = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw())
        else:
            made = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(
                filters.remove_long(WORD_BYTES)
            )
        made = made.filter(filters.lowercase())
        if not self.accents:
            made = made.filter(filters.ascii_fold())
        if stems and self.language is not None:
            made = made.filter(filters.stemmer(self.language))
        return made.build()

    def words(self, text: str) -> list[TextWord]:
        """Return the words of a text."""
        terms = _analyzer(self, True, False).pre_tokenize(text).tokens
        words = terms if self.language is None else _analyzer(self, False, False).pre_tokenize(text).tokens
        return [
            TextWord(term.position, term.char_offset_from, term.char_offset_to, word.text, term.text)
            for word, term in zip(words, terms, strict=True)
        ]

    def normal(self, piece: str) -> str:
        """Return a part of a word, from a pattern, normalised like words: in lower case, and with or without accents."""
        return "".join(_analyzer(self, False, True).analyze(piece)) if piece else ""


@lru_cache(maxsize=64)
def _analyzer(analysis: Analysis, stems: bool, whole: bool) -> tantivy.TextAnalyzer:
    return analysis.analyzer(stems=stems, whole=whole)


@lru_cache(maxsize=1)
def letters() -> npt.NDArray[np.bool_]:
    """Return a table that says for every code point whether it is part of a word: the letters and digits of tantivy, computed
    once.

    Beyond the fourth plane there are none, and surrogates are no characters.
    """
    require("search", "text analysis")
    import tantivy

    points = np.arange(0x40000, dtype=np.uint32)
    points = points[(points < 0xD800) | (points > 0xDFFF)]
    spaced = np.full(2 * len(points), ord(" "), dtype=np.uint32)
    spaced[::2] = points
    simple = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).build()
    found = "".join(simple.analyze(spaced.tobytes().decode("utf-32-le")))
    table = np.zeros(0x110000, dtype=np.bool_)
    table[np.frombuffer(found.encode("utf-32-le"), dtype=np.uint32)] = True
    return table


class Lexicon:
    """Written words, each with a number, its normal form and its term; a word that occurred before is not analysed again.

    Without an analysis, word and term are the written word. Beyond `most` words the lexicon is emptied, which increments
    `generation`.
    """

    def __init__(self, analysis: Analysis | None, most: int = 500_000) -> None:
        self._analysis = analysis
        self._most = most
        self._numbers: dict[str, int] = {}
        self.words: list[str] = []
        self.terms: list[str] = []
        self.generation = 0

    def look_up(self, written: list[str]) -> npt.NDArray[np.int64]:
        """Return the number of each word. Words must consist of letters and digits, and not be too long."""
        numbers = self._numbers
        missing = [word for word in written if word not in numbers]
        if missing and len(numbers) + len(missing) > self._most:
            for forgotten in (numbers, self.words, self.terms):
                forgotten.clear()
            self.generation += 1
            missing = written
        if missing:
            words, terms = self._analysed(missing)
            numbers.update(zip(missing, range(len(self.words), len(self.words) + len(missing)), strict=True))
            self.words += words
            self.terms += terms
        return np.fromiter(map(numbers.__getitem__, written), dtype=np.int64, count=len(written))

    def _analysed(self, written: list[str]) -> tuple[list[str], list[str]]:
        if self._analysis is None:
            return written, written
        text = " ".join(written)
        terms = _analyzer(self._analysis, True, False).analyze(text)
        if self._analysis.language is None:
            return terms, terms
        return _analyzer(self._analysis, False, False).analyze(text), terms
