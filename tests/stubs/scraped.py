"""What Prometheus reads of our `/metrics`, by its own library's parser."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, str], float]


def scraped(text: str) -> Samples:
    """Values by name and by the values of the labels, joined."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(samples: Samples, name: str) -> dict[str, float]:
    return {label: value for (found, label), value in samples.items() if found == name}


def went_down(earlier: Samples, later: Samples) -> Iterable[tuple[str, str]]:
    """Counters, and counts of histograms, that are smaller than before, or gone."""
    ends = ("_total", "_count", "_bucket", "_sum")
    return [key for key, value in earlier.items() if key[0].endswith(ends) and later.get(key, -1.0) < value]
