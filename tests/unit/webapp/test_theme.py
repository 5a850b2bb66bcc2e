"""Text can be read (WCAG AA), accounts can be told apart, also by colour-blind eyes."""

from __future__ import annotations

import itertools

import pytest

from webapp import theme

# Machado, Oliveira and Fernandes 2009, severity 1, in linear RGB.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881)),
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}  # fmt: skip


def linear(colour: str) -> tuple[float, float, float]:
    def channel(i: int) -> float:
        v = int(colour[i : i + 2], 16) / 255
        return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4

    return channel(1), channel(3), channel(5)


def luminance(colour: str) -> float:
    r, g, b = linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, two: str) -> float:
    a, b = sorted((luminance(one), luminance(two)), reverse=True)
    return (a + 0.05) / (b + 0.05)


def mixed(over: str, under: str, alpha: float) -> str:
    pairs = [(int(over[i : i + 2], 16), int(under[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(alpha * a + (1 - alpha) * b):02x}" for a, b in pairs)


def lab(colour: str, blindness: str) -> tuple[float, float, float]:
    rgb = linear(colour)
    r, g, b = (
        min(max(sum(k * c for k, c in zip(row, rgb, strict=True)), 0), 1)
        for row in BLINDNESS[blindness]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(colours):
    for ground in (colours["backgroundColor"], colours["secondaryBackgroundColor"]):
        # The framework shows captions and placeholders as the text's colour at 60 %.
        faded = mixed(colours["textColor"], ground, 0.6)
        for ink in (colours["textColor"], colours["grayTextColor"], colours["linkColor"], faded):
            assert contrast(ink, ground) >= 4.5, (ink, ground)


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_accounts_are_told_apart(blindness):
    for (one, a), (two, b) in itertools.combinations(theme.LATE.items(), 2):
        distance = (
            sum((p - q) ** 2 for p, q in zip(lab(a, blindness), lab(b, blindness), strict=True))
            ** 0.5
        )
        assert distance > 9, (one, two, round(distance, 1))


def test_accounts_stand_out_from_both_grounds():
    for colour in theme.LATE.values():
        for ground in (theme.LIGHT["backgroundColor"], theme.DARK["backgroundColor"]):
            assert contrast(colour, ground) >= 1.8, colour


def test_every_account_has_a_colour():
    from analyzer.attribution import classification

    assert tuple(theme.ACCOUNTS) == classification.ACCOUNTS
