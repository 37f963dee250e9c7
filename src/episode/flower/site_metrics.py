"""The mean of what sites have measured with their own `evaluate`, weighted as Flower does.

Each site's word is checked by itself, and each metric by itself: a value that is not finite, or of
another form than the other sites', is left out of the mean of that metric, and the log says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.supercore import log

from episode.flower.checks import Rejected
from episode.flower.exchange import Failure, Outcome
from episode.flower.texts import one_line

_MOST_METRICS = 1000
_LONGEST_NAME = 100


@dataclass(frozen=True)
class SiteMetrics:
    """What one site has measured, and its weight."""

    weight: float
    values: dict[str, list[float]]
    """Numbers by name; a metric that is one number is a list of one."""
    lists: frozenset[str]
    """Names of the metrics that were sent as lists."""

    @classmethod
    def read(cls, content: RecordDict, weighted_by: str, most: float) -> SiteMetrics:
        """Read a site's reply.

        Args:
            content: The reply, which has one record of metrics.
            weighted_by: Name of the metric that is the site's weight.
            most: The largest weight that is believed.

        Raises:
            Rejected: There is no such record or weight, or it is not a number from 0 to `most`.
        """
        records = list(content.metric_records.values())
        if len(records) != 1 or weighted_by not in records[0]:
            raise Rejected(f"sent no metrics with {weighted_by!r}")
        if len(records[0]) > _MOST_METRICS:
            raise Rejected(f"sent {len(records[0])} metrics, more than {_MOST_METRICS}")
        weight = records[0][weighted_by]
        if not isinstance(weight, (int, float)) or not 0 <= weight <= most:
            raise Rejected(
                f"sent a {weighted_by} of {weight!r}, which is not a number from 0 to {most:g}"
            )
        values: dict[str, list[float]] = {}
        for name, value in records[0].items():
            if name != weighted_by:
                numbers = value if isinstance(value, list) else [value]
                values[name] = [float(number) for number in numbers]
        lists = frozenset(n for n, value in records[0].items() if isinstance(value, list))
        return cls(float(weight), values, lists)

    def numbers(self) -> dict[str, float]:
        """Return the metrics that are single numbers, without names or values of no use."""
        return {
            name: values[0]
            for name, values in self.values.items()
            if name not in self.lists and _is_printable(name) and math.isfinite(values[0])
        }

    def form_of(self, name: str) -> tuple[bool, int]:
        """Return whether a metric is a list, and how many numbers it has."""
        return name in self.lists, len(self.values[name])


def read_sites(
    replies: Mapping[int, Outcome], weighted_by: str, most: float
) -> dict[int, SiteMetrics]:
    """Return what sites have measured, without those whose reply cannot be used.

    Args:
        replies: What came back, by client.
        weighted_by: Name of the metric that is a site's weight.
        most: The largest weight that is believed.
    """
    sites: dict[int, SiteMetrics] = {}
    for client, reply in replies.items():
        try:
            if isinstance(reply, Failure):
                raise Rejected(reply.reason)
            sites[client] = SiteMetrics.read(reply, weighted_by, most)
        except Rejected as rejected:
            log(WARNING, "Site %d was not evaluated: it %s", client, rejected)
        except Exception as error:  # noqa: BLE001 - nothing that a site sends may end the run
            kind = type(error).__name__
            log(WARNING, "Site %d was not evaluated: its reply cannot be read (%s)", client, kind)
    return {client: site for client, site in sites.items() if site.weight > 0}


def mean_of_sites(sites: Mapping[int, SiteMetrics]) -> MetricRecord | None:
    """Return the weighted mean of the sites' metrics, or None if there are none."""
    names = dict.fromkeys(name for site in sites.values() for name in site.values)
    mean, unusable = MetricRecord(), dict[int, list[str]]()
    for name in names:
        found = _mean(name, {c: s for c, s in sites.items() if name in s.values}, unusable)
        if found is not None:
            mean[name] = found
    for client, reasons in unusable.items():
        text = "Site %d was evaluated without %d of its metrics: %s"
        log(WARNING, text, client, len(reasons), one_line("; ".join(reasons)))
    return mean if sites else None


def _mean(
    name: str, sites: Mapping[int, SiteMetrics], unusable: dict[int, list[str]]
) -> float | list[float] | None:
    """Return the mean of one metric, or None; note the sites whose value cannot be used."""
    is_list, length = Counter(s.form_of(name) for s in sites.values()).most_common(1)[0][0]
    good: list[SiteMetrics] = []
    for client, site in sites.items():
        if not _is_printable(name):
            reason = "has a name that is too long or cannot be printed"
        elif site.form_of(name) != (is_list, length):
            reason = "is not of the form that other sites send"
        elif not all(map(math.isfinite, site.values[name])):
            reason = "is not finite"
        else:
            good.append(site)
            continue
        unusable.setdefault(client, []).append(f"{one_line(name, _LONGEST_NAME)} {reason}")
    if not good:
        return None
    total = sum(site.weight for site in good)
    sums = [0.0] * length
    for site in good:
        share = site.weight / total
        sums = [s + v * share for s, v in zip(sums, site.values[name], strict=True)]
    return sums if is_list else sums[0]


def _is_printable(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and name.isprintable()
