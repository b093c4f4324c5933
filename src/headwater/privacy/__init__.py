"""Privacy: encryption of private columns with a key per subject, for crypto-shredding.

Called by deletion, engine, events, log, queues, workspace; imports catalog, core.

In import order, bottom to top:

    master_keys        master keys that wrap subject keys: a local file or a KMS
    key_files          the files of subject keys: slots of wrapped keys, and the list of forgotten subjects
    subject_keys       one key per subject: created at first write, destroyed on `forget`
    column_encryption  encryption of private columns on append, decryption on read
"""
