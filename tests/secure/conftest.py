"""Files of clients lie in memory for all that a test cares: nothing is synced."""

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    monkeypatch.setattr("fedsolve.folders.files.os.fsync", lambda file: None)


@pytest.fixture
def few_pre_keys(monkeypatch):
    """Clients hand out two at a time, for tests of many clients."""
    monkeypatch.setattr("fedsolve.deploy.secure.identity.BUNDLE", 2)
