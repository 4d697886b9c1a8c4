"""Runs whose settings are given as keywords."""

import causal_bo_ppl as cb

PRESETS = ("gc-cbo", "gc-cbo-ei", "gc-cbo-nocoupling", "gc-cbo-fixed", "cbo", "cbo-noprior", "bo")
NOT_SETTINGS = ("data", "experiment", "callback", "resume", "progress", "key")


def optimize(of, preset="gc-cbo", **options):
    """Call `cb.optimize` with a preset that is changed by all options that are settings."""
    others = {name: options.pop(name) for name in NOT_SETTINGS if name in options}
    return cb.optimize(of, cb.Settings.preset(preset, **options), **others)
