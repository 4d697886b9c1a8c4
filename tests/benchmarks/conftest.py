"""What a benchmark measured is shown, whether or not it passed."""

import sys

import pytest


@pytest.fixture
def say(capsys):
    def write(text):
        with capsys.disabled():
            sys.stdout.write(f"\n{text}")

    return write
