"""Percolator: stored queries matched with documents as both arrive; search turned around.

Called by engine, lineage, plan, verify; imports core, operators.zset.

In import order, bottom to top:

    phrases          phrase matching by positions
    query_nodes      the tree of a parsed query
    fields           columns as searchable fields, and the order of their values
    query_scanner    characters and words of Lucene query syntax
    query_leaves     terms, phrases, patterns and ranges of a parsed query
    lucene_syntax    the parser of Lucene query syntax
    query_reference  reference evaluation: one document, one query
    tokens           tokenizing many texts at once
    term_patterns    wildcards, fuzzy words and ranges, resolved to terms
    terms            terms that queries look for, each stored once
    query_programs   queries compiled to rows of numbers
    term_lookup      words of documents to terms, cached
    documents        a batch of documents as terms, positions and values
    query_segments   immutable segments of the query index, merged
    evaluation       evaluation of candidate pairs: match, score, positions
    query_index      the index of stored queries: add, remove, match a batch
    query_history    stored queries with their history, matched by position in the log
    percolate        the operator: deltas of documents and queries to a delta of matches
"""
