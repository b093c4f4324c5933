"""The operators: pure kernels on Arrow that turn state and a delta into new state and a delta. `delta` says what changes are, `runs` what state is."""
