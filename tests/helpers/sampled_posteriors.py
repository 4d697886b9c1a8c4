"""Sampled posteriors whose draws, statistics or names are replaced."""

from dataclasses import replace


def replaced(post, names=None, psi=None, **stats):
    """Return the posterior with other draws, other statistics of the sampler, or other names."""
    coordinates = post.distribution.psi if psi is None else psi
    distribution = replace(
        post.distribution, psi=coordinates, stats=post.distribution.stats | stats
    )
    if names:
        distribution.__dict__["summary"] = post.distribution.summary.rename(index=names)
    return replace(post, distribution=distribution)
