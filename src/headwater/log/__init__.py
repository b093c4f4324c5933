"""The log: rows in, topics of partitions at offsets out. `protocol` says what is promised; `embedded` and `memory` keep it."""
