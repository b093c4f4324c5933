"""Sources and sinks at work: declared, started, waited for and checked. What a workspace hands on to when the outside is meant."""
