"""How is something written as a JSON text that an accident cannot change without being noticed?

A document has a kind, a format, the versions of the packages that wrote it, and a checksum.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from causal_bo_ppl.errors import StoreError

RECORDED_PACKAGES = ("jax", "numpy", "numpyro")  # whose versions are stored


def find_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of this package and of those that compute for it."""
    import causal_bo_ppl

    others = ((name, version(name)) for name in RECORDED_PACKAGES)
    return (("causal_bo_ppl", causal_bo_ppl.__version__), *others)


def write_document(kind: str, format_version: int, content: Mapping[str, Any]) -> str:
    """Return a JSON text of some content, with a checksum."""
    document = {"format": format_version, "kind": kind, "versions": dict(find_versions())}
    document |= content
    return json.dumps(document | {"checksum": _checksum(document)}, allow_nan=False)


def read_document(text: str, kind: str, format_version: int) -> dict[str, Any]:
    """Return what `write_document` wrote.

    Raises
    ------
    StoreError
        If this is another text, of another format, or if it was cut off or changed.
    """
    advice = f"write the text again with {kind}.to_json()"
    try:
        document = json.loads(text)
    except (TypeError, ValueError) as error:
        is_path = isinstance(text, os.PathLike) or str(text).strip().endswith(".json")
        advice = "give the text of the file, Path(...).read_text()" if is_path else advice
        raise StoreError(f"a {kind} is read from a JSON text: {error}; {advice}") from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise StoreError(f"this is not the text of a {kind}; {advice}")
    if document.get("format") != format_version:
        raise StoreError(
            f"this {kind} was written in format {document.get('format')!r} by "
            f"{document.get('versions')!r}; this version reads format {format_version}"
        )
    if document.pop("checksum", None) != _checksum(document):
        raise StoreError(
            f"this text of a {kind} was cut off or changed: its checksum differs; {advice}"
        )
    return document


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
