"""Where a row of a view comes from: the log records that suffice to compute it again."""
