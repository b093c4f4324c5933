"""How text is taken apart into words and terms: one definition, for search indexes and for standing queries.

Text is cut into words at everything that is neither a letter nor a digit; words of 40 bytes and more are passed over,
though they count as positions. A word is lower case, without accents where they are not to matter; its term is its stem
in the language, if there is one. Terms are what is compared; words are what patterns are held against. tantivy does all
of it, so that an index that tantivy keeps and what is computed without one agree.
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
"""Words of so many bytes and more, as they are written, are no words."""


class TextWord(NamedTuple):
    """A word of a text: which one it is, where it stands in characters, how it is normalised, and its term."""

    position: int
    start: int
    end: int
    word: str
    term: str


@dataclass(frozen=True)
class Analysis:
    """How text is taken apart: `language` reduces words to stems; `accents=False` takes é for e.

    Accents go before stems are made, so that they decide nothing.
    """

    language: str | None = None
    accents: bool = True

    def __post_init__(self) -> None:
        if self.language is not None and self.language not in LANGUAGES:
            raise UsageError(
                f"there is no language {self.language!r} to search in",
                hint=f"use one of {', '.join(LANGUAGES)}",
            )

    @property
    def name(self) -> str:
        """The name under which an index of tantivy knows this analysis."""
        stems = "default" if self.language is None else f"stemmed_{self.language}"
        return stems if self.accents else f"{stems}_folded"

    def register(self, index: tantivy.Index) -> None:
        """Tell an opened index of tantivy how text is taken apart; it keeps the name alone."""
        if self.name != "default":
            index.register_tokenizer(self.name, self.analyzer())

    def analyzer(self, *, stems: bool = True, whole: bool = False) -> tantivy.TextAnalyzer:
        """What makes terms of a text, or words; `whole` takes the text for one word, however long."""
        require("search", "taking text apart into words")
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
        """The words of a text."""
        terms = _analyzer(self, True, False).pre_tokenize(text).tokens
        words = terms if self.language is None else _analyzer(self, False, False).pre_tokenize(text).tokens
        return [
            TextWord(term.position, term.char_offset_from, term.char_offset_to, word.text, term.text)
            for word, term in zip(words, terms, strict=True)
        ]

    def normal(self, piece: str) -> str:
        """A piece of a word, as a pattern has it, in lower case and with accents or without as words are."""
        return "".join(_analyzer(self, False, True).analyze(piece)) if piece else ""


@lru_cache(maxsize=64)
def _analyzer(analysis: Analysis, stems: bool, whole: bool) -> tantivy.TextAnalyzer:
    return analysis.analyzer(stems=stems, whole=whole)


@lru_cache(maxsize=1)
def letters() -> npt.NDArray[np.bool_]:
    """Of every code point whether it is part of a word: the letters and digits of tantivy, asked once.

    Beyond the fourth plane there are none, and surrogates are no characters.
    """
    require("search", "taking text apart into words")
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
    """Words as they are written, each with a number, its normal form and its term; those seen before are not analysed again.

    With no analysis a word is what it is. Where there are too many all are forgotten, which `generation` counts.
    """

    def __init__(self, analysis: Analysis | None, most: int = 500_000) -> None:
        self._analysis = analysis
        self._most = most
        self._numbers: dict[str, int] = {}
        self.words: list[str] = []
        self.terms: list[str] = []
        self.generation = 0

    def look_up(self, written: list[str]) -> npt.NDArray[np.int64]:
        """The number of each word; what is analysed are letters and digits, and not too long."""
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
