"""How is a posterior shown in a notebook?"""

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from causal_bo_ppl.inference.posterior import Posterior


def write_html(post: "Posterior") -> str:
    """Return how it was computed, whether that worked, and a table of its coordinates."""
    size = f"{len(post.names)} {post.kind} parameters"
    title = f"<p>{size}, {post.method} posterior from {post.n_observations} rows"
    note = html.escape(f"verdict: {post.status}; moments: {post.moments_by}")
    table = post.to_frame().to_html(max_rows=60, float_format="{:.4g}".format)
    why = "" if post.chosen is None else f"<p>{html.escape(post.chosen.text)}</p>"
    return f"{title}; {note}</p>{why}{table}"
