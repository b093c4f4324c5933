"""A batch of documents prepared for matching: the atoms of each, their positions, and the values to compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.percolator.phrases import occurrences
from headwater.operators.percolator.term_lookup import Lookup
from headwater.operators.percolator.terms import EVERYTHING, PATTERN, PHRASE, PRESENT, RANGE, TERM, Atoms
from headwater.operators.percolator.tokens import Tokens, spread, tokens_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_NOWHERE: tuple[int, list[int]] = (0, [])


class DocumentBatch:
    """Documents, tokenized. A hit is a word of a document that matches an atom; hits are sorted by atom and document."""

    def __init__(self, atoms: Atoms, texts: Lookup, keywords: Lookup, documents: pa.Table) -> None:
        self.atoms = atoms
        self.size = documents.num_rows
        fields = atoms.fields.columns
        self.values = np.zeros((len(fields), self.size), dtype=np.int64)
        self.there = np.zeros((len(fields), self.size), dtype=np.bool_)
        found: list[tuple[Ints, Tokens, Ints]] = []
        kept = 0
        tokens: list[Tokens] = []
        for place, field in enumerate(fields):
            column = documents.column(field.name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type)
            self.there[place] = np.asarray(column.is_valid())
            if field.ordered:
                self.values[place] = field.order(column)[0]
            elif atoms.terms[place] or atoms.by_pattern[place]:
                lookup = texts if field.kind == "text" else keywords
                its = tokens_of(field, column, lookup.lexicon)
                found += self._hits(place, its, lookup, kept)
                tokens.append(its)
                kept += len(its.row)
        self._lay(found, tokens)
        self._phrases: dict[int, tuple[int, list[int]]] = {}
        """Number of occurrences of a phrase in a document, and the words involved, by phrase and document combined in
        one key."""

    def _hits(self, place: int, its: Tokens, lookup: Lookup, kept: int) -> list[tuple[Ints, Tokens, Ints]]:
        """Return the atoms of words and of patterns, each with the indices of its words."""
        hits = []
        if len(its.code):
            atom = lookup.terms(place, its.lexemes)[its.code]
            places = np.flatnonzero(atom >= 0)
            hits.append((atom[places], its, places + kept))
        by_pattern = self.atoms.by_pattern[place]
        if by_pattern and len(its.code):
            pairs = [
                (code, by_pattern[number])
                for code, numbers in lookup.patterns(its.lexemes)
                for number in numbers
                if number in by_pattern
            ]
            if pairs:
                code, atom = np.array(pairs, dtype=np.int64).T
                by_code = np.argsort(its.code, kind="stable")
                sorted_codes = its.code[by_code]
                first = np.searchsorted(sorted_codes, code, side="left")
                count = np.searchsorted(sorted_codes, code, side="right") - first
                hits.append((np.repeat(atom, count), its, by_code[spread(first, count)] + kept))
        return hits

    def _lay(self, found: list[tuple[Ints, Tokens, Ints]], tokens: list[Tokens]) -> None:
        """Sort the hits by atom and document, and build the lookup columns."""
        self.token_row = _joined([its.row for its in tokens])
        self.token_item = _joined([its.item for its in tokens])
        self.token_position = _joined([its.position for its in tokens])
        self.token_start = _joined([its.start for its in tokens])
        self.token_end = _joined([its.end for its in tokens])
        atom = _joined([atom for atom, _, _ in found])
        token = _joined([token for _, _, token in found])
        size = max(self.size, 1)
        keys = atom * size + self.token_row[token]
        order = np.argsort(keys, kind="stable")
        self.hit_token = token[order]
        self.pairs, starts = np.unique(keys[order], return_index=True)
        """Pairs of an atom and a document, combined in one key; `hit_at` has the start of each pair's hits."""
        self.hit_at = np.append(starts, len(order)).astype(np.int64)
        pair_atom = self.pairs // size
        self.pair_row = self.pairs - pair_atom * size
        self.active, self.active_at = np.unique(pair_atom, return_index=True)
        """Atoms that occur, ascending, and the start of each atom's pairs."""
        self.active_at = np.append(self.active_at, len(self.pairs)).astype(np.int64)
        self.line = np.zeros(len(self.atoms) + 1, dtype=np.int32)
        """Row of each atom in `has`; 0 if no document has the atom, and for the extra last entry, which stands for no atom."""
        self.line[self.active] = np.arange(1, len(self.active) + 1)
        self.has = np.zeros((len(self.active) + 1, size), dtype=np.bool_)
        self.has[self.line[pair_atom], self.pair_row] = True

    def met(self, atom: npt.NDArray[np.integer], row: Ints) -> Bools:
        """Return a mask of the pairs where the document has the atom."""
        kind = self.atoms.kind[atom]
        held: Bools = self.has[self.line[atom], row]
        ranges = np.flatnonzero(kind == RANGE)
        if len(ranges):
            which, rows = atom[ranges], row[ranges]
            place = self.atoms.field[which]
            value = self.values[place, rows]
            within = (self.atoms.low[which] <= value) & (value <= self.atoms.high[which])
            held[ranges] = within & self.there[place, rows]
        present = np.flatnonzero(kind == PRESENT)
        if len(present):
            held[present] = self.there[self.atoms.field[atom[present]], row[present]]
        held[kind == EVERYTHING] = True
        phrases = np.flatnonzero(kind == PHRASE)
        if len(phrases):
            held[phrases] = self._phrases_met(atom[phrases].astype(np.int64), row[phrases])
        return held

    def _phrases_met(self, atom: Ints, row: Ints) -> Bools:
        """Return a mask of the documents that have the phrases; occurrences are cached for the score."""
        size = max(self.size, 1)
        keys, back = np.unique(atom * size + row, return_inverse=True)
        unknown = np.array([key not in self._phrases for key in keys.tolist()], dtype=np.bool_)
        self._find_phrases(keys[unknown])
        held = np.array([self._phrases[key][0] > 0 for key in keys.tolist()], dtype=np.bool_)
        return held[back]

    def _find_phrases(self, keys: Ints) -> None:
        """Find phrases: check first that documents have the terms, then where; exact phrases are found by vector
        operations."""
        atom, row = keys // max(self.size, 1), keys % max(self.size, 1)
        self._phrases.update(dict.fromkeys(keys.tolist(), _NOWHERE))
        phrases = [self.atoms.phrases[one] for one in atom.tolist()]
        count = np.array([len(terms) for terms, _, _ in phrases], dtype=np.int64)
        term = np.fromiter((one for terms, _, _ in phrases for one in terms), dtype=np.int64)
        place = np.fromiter((one for _, places, _ in phrases for one in places), dtype=np.int64)
        owner = np.repeat(np.arange(len(keys), dtype=np.int64), count)
        missing = np.bincount(owner, weights=~self.has[self.line[term], row[owner]], minlength=len(keys))
        kept = missing[owner] == 0
        owner, term, place = owner[kept], term[kept], place[kept]
        pair = np.searchsorted(self.pairs, term * self.size + row[owner])
        begin, times = self.hit_at[pair], self.hit_at[pair + 1] - self.hit_at[pair]
        exact = np.array([slop == 0 for _, _, slop in phrases], dtype=np.bool_)[owner]
        self._exact(keys, owner[exact], place[exact], begin[exact], times[exact], count)
        for one in np.unique(owner[~exact]).tolist():
            its = slice(*np.searchsorted(owner, [one, one + 1]).tolist())
            where = []
            for first, many in zip(begin[its].tolist(), times[its].tolist(), strict=True):
                words = self.hit_token[first : first + many]
                where.append(list(zip(self.token_position[words].tolist(), words.tolist(), strict=True)))
            self._phrases[int(keys[one])] = occurrences(where, *phrases[one])

    def _exact(self, keys: Ints, owner: Ints, place: Ints, begin: Ints, times: Ints, count: Ints) -> None:
        """Find phrases without slop: at start positions on which as many terms agree as the phrase has."""
        owners, token = np.repeat(owner, times), self.hit_token[spread(begin, times)]
        start = self.token_position[token] - np.repeat(place, times)
        order = np.lexsort((token, start, owners))
        owners, start, token = owners[order], start[order], token[order]
        edge = np.ones(len(owners) + 1, dtype=np.bool_)
        edge[1:-1] = (owners[1:] != owners[:-1]) | (start[1:] != start[:-1])
        first = np.flatnonzero(edge)
        length = np.diff(first)
        first = first[:-1]
        whole = length == count[owners[first]]
        for at, many in zip(first[whole].tolist(), length[whole].tolist(), strict=True):
            key = int(keys[owners[at]])
            found, words = self._phrases[key]
            self._phrases[key] = found + 1, [*words, *token[at : at + many].tolist()]

    @property
    def spans(self) -> tuple[Ints, Ints, Ints]:
        """Location of each word: value index, start and end in characters."""
        return self.token_item, self.token_start, self.token_end

    def times(self, atom: Ints, row: Ints) -> Ints:
        """Return how often documents have words and phrases; 1 for other atoms, which score like a single occurrence."""
        kind = self.atoms.kind[atom]
        counts = np.ones(len(atom), dtype=np.int64)
        words = np.flatnonzero(kind == TERM)
        pair = np.searchsorted(self.pairs, atom[words] * self.size + row[words])
        counts[words] = self.hit_at[pair + 1] - self.hit_at[pair]
        for at in np.flatnonzero(kind == PHRASE).tolist():
            counts[at] = self._phrases[int(atom[at]) * self.size + int(row[at])][0]
        return counts

    def marks(self, atom: Ints, row: Ints) -> tuple[Ints, Ints]:
        """Return the words in which each atom is found in each document: the index of the pair, and the word."""
        kind = self.atoms.kind[atom]
        words = np.flatnonzero((kind == TERM) | (kind == PATTERN))
        pair = np.searchsorted(self.pairs, atom[words] * self.size + row[words])
        count = self.hit_at[pair + 1] - self.hit_at[pair]
        owners, tokens = [np.repeat(words, count)], [self.hit_token[spread(self.hit_at[pair], count)]]
        for at in np.flatnonzero(kind == PHRASE).tolist():
            its = self._phrases[int(atom[at]) * self.size + int(row[at])][1]
            owners.append(np.full(len(its), at, dtype=np.int64))
            tokens.append(np.array(its, dtype=np.int64))
        return _joined(owners), _joined(tokens)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
