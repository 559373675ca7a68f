"""The section on the claims that a study checks."""

from __future__ import annotations

import pandas as pd

from fpl_tune.report.blocks import Section, plain_table
from fpl_tune.report.facts import Facts
from fpl_tune.study import claims as study_claims


def claims(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which of the study's claims do the results support?"""
    judged = study_claims.evaluate(facts.store, facts.rule)
    if not judged:
        return None
    texts = [
        f"{study_claims.counts(judged)}. A claim holds where the 95 % interval of the difference, paired over seeds, "
        "lies inside of what is claimed, and fails where it lies outside."
    ]
    rows = [[claim.status, claim.says, claim.source or "–", claim.reason] for claim in judged]
    return Section("claims", "Claims", texts, tables=[plain_table(["", "claim", "shown in", "figures"], rows)])
