"""Row patterns: matches of a regular expression over the ordered rows of partitions, as MATCH_RECOGNIZE has them. `pattern` and `spec` say what is looked for."""
