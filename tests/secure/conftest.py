"""Files of clients lie in memory for all that a test cares: nothing is synced."""

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    monkeypatch.setattr("fedsolve.folders.files.os.fsync", lambda file: None)
