"""Draws the README's images: the report of the λ sweep, and MLflow's comparison of its cells.

fpl-tune study lambda_sweep
python docs/site/draw.py      # needs the browser chromium
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

from fpl_tune.core.paths import output_root
from fpl_tune.study import tracking

IMAGES = Path(__file__).resolve().parents[1] / "images"
STUDY = "lambda_sweep"


def shot(url: str, size: tuple[int, int], wait: int) -> Image.Image:
    """What the browser shows at an address after `wait` milliseconds of its own clock."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("The images are drawn by a browser, but there is no chromium. Install it: apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        image = Path(folder) / "page.png"
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={folder}/profile",
             f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={wait}", f"--screenshot={image}", url],
            check=True, timeout=180, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return Image.open(image).convert("RGB")


def save(image: Image.Image, name: str, width: int = 1000) -> None:
    """Small enough for a repository: resized, 256 colours."""
    image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def comparison(root: Path) -> Image.Image:
    """The comparison page of all cells, from a server on the studies' SQLite file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    links = tracking.links(root / STUDY, address)
    if not links:
        sys.exit(f"MLflow holds no {STUDY} in {root}. Run `fpl-tune study {STUDY}`.")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{root / 'mlflow.db'}"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            time.sleep(0.5)
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                continue
        page = shot(links["compare"], (1800, 900), 40000)
        return page.crop((200, 0, 1330, 650))  # without MLflow's menu and assistant
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    outputs = output_root()
    save(shot((outputs / STUDY / "report.html").as_uri(), (1180, 870), 3000), "report.png")
    save(comparison(outputs), "mlflow.png")
