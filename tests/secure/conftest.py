"""Files of clients lie in memory for all that a test cares: nothing is synced."""

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    monkeypatch.setattr("fedsolve.folders.files.os.fsync", lambda file: None)


@pytest.fixture
def drawn(monkeypatch):
    """Beyond 8 clients a committee is drawn, beyond 32 a ring; clients hand out two pre-keys at a time."""
    monkeypatch.setattr("fedsolve.deploy.secure.keys.COMMITTEE", 8)
    monkeypatch.setattr("fedsolve.deploy.secure.attempt.COMPLETE", 32)
    monkeypatch.setattr("fedsolve.deploy.secure.keys.BUNDLE", 2)
