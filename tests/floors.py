"""Which versions are the lowest that are promised? Lines `name==version` for pip.

They are read from the dependencies in pyproject.toml, so that what `make floors` tries is what is
promised there.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOOR = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)(?:,<[0-9.]+)?(?:;.*)?")


def floors():
    """Return the lowest version of every dependency, by name."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found = [FLOOR.fullmatch(each) for each in dependencies]
    if None in found:
        raise ValueError(
            f"every dependency needs a lowest version, as in name>=1.2: {dependencies}"
        )
    return {match[1]: match[2] for match in found}


if __name__ == "__main__":
    versions = floors()
    versions["jaxlib"] = versions["jax"]
    sys.stdout.write("".join(f"{name}=={version}\n" for name, version in versions.items()))
