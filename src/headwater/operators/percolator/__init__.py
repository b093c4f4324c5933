"""Percolator: stored queries matched against documents as both arrive; search in reverse.

Called by engine, lineage, plan, verify; imports core, operators.zset.

In import order, bottom to top:

    phrases          phrase matching by positions
    query_nodes      the tree of a parsed query
    fields           columns as searchable fields, and the order of their values
    query_scanner    characters and words of Lucene query syntax
    query_leaves     terms, phrases, patterns and ranges of a parsed query
    lucene_syntax    the parser of Lucene's query syntax
    query_reference  reference evaluation of one query against one document
    tokens           tokenization of many texts at once
    term_patterns    index of wildcards, fuzzy words and ranges by the words that they match
    terms            atoms: the distinct leaves of queries
    query_programs   queries compiled to rows of numbers
    term_lookup      cached mapping from words of documents to atoms
    documents        a batch of documents as words, positions and values
    query_segments   immutable segments of the query index, merged
    evaluation       evaluation of candidate pairs: match, score, positions
    query_index      the index of stored queries: add, remove, match a batch of documents
    query_history    all versions of stored queries, matched by position in the log
    percolate        the operator: deltas of documents and queries to a delta of matches
"""
