"""Files source: growing, rotated and new files of a folder, as lines, JSON, CSV or Parquet.

Called by connectors, sources.registry; imports catalog, core, log, sources.base, sources.clock_positions,
sql.

In import order, bottom to top:

    contents      bytes of a plain or compressed file, and fingerprints of content
    options       options of the declaration
    lines         lines and CSV records found in bytes
    tracking      which files exist, and how far the log has each
    formats       lines to rows, by format
    file_reader   one file read by its format
    reread_line   a rejected line read again, for dead letters
    scan_files    one scan of all files: new content, and how far each was read
    files_source  the source
"""
