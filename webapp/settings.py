"""How the app is served: its script, Streamlit's options, the name of the store. Loads nothing
heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from webapp import theme

APP = Path(__file__).parent / "app.py"
STORE_VARIABLE = "HOSTBOUND_DB"


def options(host: str, port: int, base_path: str = "") -> dict[str, Any]:
    """Streamlit's options for this app."""
    return {
        "server.address": host,
        "server.port": port,
        "server.baseUrlPath": base_path.strip("/"),
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 2000,
        "server.showEmailPrompt": False,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        **theme.options(),
    }
