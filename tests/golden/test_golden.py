"""Does the package still give the numbers that were recorded before it was redesigned?"""

import pytest
from golden import comparing, quantities

pytestmark = pytest.mark.slow  # `make golden`


@pytest.mark.parametrize(
    ("system", "kind"), quantities.PAIRS, ids=lambda word: word.replace(" ", "-")
)
def test_what_was_recorded_is_found_again(system, kind):
    lines = comparing.judge(system, kind)
    assert lines and comparing.labels(system, kind)
    assert all(line.passed for line in lines), "\n".join(
        str(line) for line in lines if not line.passed
    )


def test_everything_recorded_is_measured():
    arrays, texts = comparing.recorded()
    held = {tuple(label.split("/")[:2]) for label in (*arrays, *texts)}
    assert held == set(quantities.PAIRS)
