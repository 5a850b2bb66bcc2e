"""The bands of the Host-Device Balance Index (HDBI): their limits and their words, here alone."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Band:
    """A band of HDBI: least <= HDBI < below; the last one holds 1 too."""

    name: str  # host-bound | balanced | device-bound
    least: float  # where it begins
    below: float  # where the next begins
    sentence: str  # what it means


BANDS = (
    Band("host-bound", 0.0, 0.4, "host-bound: preparing the work costs more than doing it."),
    Band("balanced", 0.4, 0.6, "balanced: preparing the work costs about as much as doing it."),
    Band("device-bound", 0.6, 1.0, "device-bound: the work itself costs more than preparing it."),
)


def band_of(hdbi: float) -> Band:
    """The band in which a value lies."""
    return next((band for band in BANDS if hdbi < band.below), BANDS[-1])


def reading(hdbi: float | None) -> str:
    """HDBI in words; "unknown" for None."""
    return UNKNOWN if hdbi is None else band_of(hdbi).name
