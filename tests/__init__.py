"""The tests. Folders mirror `src/understudy/`; helpers are imported as `tests.…`."""
