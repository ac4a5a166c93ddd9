"""Make the remaining rows of a group sum to zero again, without changing any row's sign.

    p, n     rows kept with A > 0, with A < 0        S+ = sum of A+        S- = sum of |A-|
    M        = (n S+ + p S-) / (p + n)
    A'_i     = A_i M / S+  for positive rows,  A_i M / S-  for negative rows

Both signs then weigh M, so the group sums to zero, and the gap between the mean positive and the
mean negative advantage is what it was (M/p + M/n = S+/p + S-/n). For two-valued rewards this *is*
subtracting the mean of the kept rows. For other rewards subtracting would zero or flip a row that
lies between the old mean and the new. Example: the group 2, 0.1, -0.7, -0.7, -0.7 keeps 2, 0.1 and
one -0.7; their mean is 0.47, so subtracting it would make the 0.1 negative. Scaling cannot.

A group that lost no row keeps its advantages to the bit (M = S+ = S-); a group left with a single
sign has nothing to balance and keeps them too. A trimmed group of both signs is brought to zero
even if its credit did not sum to zero before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterpoise.types import Row


def recentre(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Scale the remaining rows of one group, all with signal, so that they sum to zero.

    Example:
        >>> kept = [Row("g", advantage, 9) for advantage in (0.5, -1.5)]
        >>> [row.advantage for row in recentre(kept)]
        [1.0, -1.0]
    """
    positive_advantages = [row.advantage for row in rows if row.advantage > 0]
    negative_magnitudes = [-row.advantage for row in rows if row.advantage < 0]
    if not positive_advantages or not negative_magnitudes:
        return tuple(rows)
    num_positive, positive_sum = len(positive_advantages), sum(positive_advantages)
    num_negative, negative_sum = len(negative_magnitudes), sum(negative_magnitudes)
    weighted_sum = num_negative * positive_sum + num_positive * negative_sum
    balanced_sum = weighted_sum / (num_positive + num_negative)  # M
    recentred_rows = []
    for row in rows:
        sign_sum = positive_sum if row.advantage > 0 else negative_sum
        # Divided first: where sign_sum is balanced_sum, the advantage must not change by a bit.
        recentred_rows.append(replace(row, advantage=row.advantage / sign_sum * balanced_sum))
    return tuple(recentred_rows)
