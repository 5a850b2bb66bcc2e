"""Colours of the app: one for each account and component, the same on every page, light and dark.

The accounts' colours follow Okabe and Ito's palette, which colour-blind people can tell apart;
where it has too few, a relative of another lightness. Tests check the text's contrast
(WCAG AA) and the distances.
"""

from __future__ import annotations

ACCOUNTS = {
    "python": "#0072B2",
    "region": "#56B4E9",
    "framework": "#E69F00",
    "library": "#D55E00",
    "launch": "#009E73",
    "graph_launch": "#7BCFA9",
    "memory": "#CC79A7",
    "copy_wait": "#AD1457",
    "wait": "#666C75",
    "other_call": "#7A4B1E",
}
DEVICE = "#7B61C9"
DEVICE_COPY = "#B39DDB"
DEVICE_TAIL = "#4B3A8C"
HIDDEN = 0.35

# The decomposition has the colours of the accounts that it is closest to.
COMPONENTS = {
    "dFT framework": ACCOUNTS["framework"],
    "dCT CUDA library": ACCOUNTS["library"],
    "dKT launch path": ACCOUNTS["launch"],
    "device active": DEVICE,
}
# What a late rank did: its accounts, and what only a wait has.
LATE = {**ACCOUNTS, "between_steps": "#3D3DF4", "device_queue": "#4B3A8C"}
WATERFALL = {**ACCOUNTS, "device_tail": DEVICE_TAIL, "total": "#6E7681"}
# For runs, which have no colour of their own: told apart by dash and shape too.
RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7B61C9", "#7A4B1E")
REST = "#8C8C8C"  # those that are left without a colour: named where they are drawn

LIGHT = {
    "base": "light",
    "primaryColor": "#0A5C8F",
    "backgroundColor": "#FFFFFF",
    "secondaryBackgroundColor": "#F3F5F8",
    "textColor": "#080C14",
    "linkColor": "#0A5C8F",
    "grayTextColor": "#545D6B",
    "borderColor": "#D5DAE1",
}
DARK = {
    "base": "dark",
    "primaryColor": "#2A78B5",
    "backgroundColor": "#0F141B",
    "secondaryBackgroundColor": "#1A212B",
    "textColor": "#E8ECF1",
    "linkColor": "#7CC0F2",
    "grayTextColor": "#A9B3C0",
    "borderColor": "#36404D",
}


def options() -> dict[str, str]:
    """The themes as options of Streamlit, both; the browser's preference decides."""
    found: dict[str, str] = {}
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        for key, value in theme.items():
            if key != "base":
                found[f"theme.{name}.{key}"] = value
    return found
