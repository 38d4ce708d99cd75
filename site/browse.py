"""Opens every page of a folder in Chromium: `python site/browse.py build/site`.

Says what each page asked of other hosts, what its scripts complained about, and where
it is wider than a window: a phone's, a tablet's, a small and a usual laptop's.  Needs
Chromium and `pip install selenium`.  Pictures of the pages go into a second folder.
"""

import base64
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars"
).split()
OWN = ("file:", "data:", "blob:", "about:", "chrome:")
WIDTHS = (390, 768, 1024, 1366)  # pixels of a window
TALLEST = 2400  # pixels of one picture of a page


def browser(profile):
    """A headless Chromium that writes down its requests."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"]:
        options.add_argument(flag)
    for name in ("chromium", "chromium-browser", "google-chrome"):
        options.binary_location = options.binary_location or shutil.which(name) or ""
    options.set_capability(
        "goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"}
    )
    driver = shutil.which("chromedriver")
    service = webdriver.ChromeService(driver) if driver else None
    return webdriver.Chrome(options=options, service=service)


def visit(driver, path):
    """Opens one page; returns the addresses elsewhere that it asked for, and errors."""
    driver.get(path.resolve().as_uri())
    events = [
        json.loads(e["message"])["message"] for e in driver.get_log("performance")
    ]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    errors = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
    return [url for url in asked if not url.startswith(OWN)], errors


def too_wide(driver):
    """The widths of windows in which the open page does not fit, as sentences."""
    found = []
    for width in WIDTHS:
        metrics = dict(width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        needed = driver.execute_script("return document.documentElement.scrollWidth")
        if needed > width:
            found.append(f"{needed} px wide in a window of {width} px")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return found


def photograph(driver, path):
    """Pictures of the whole page, from top to bottom."""
    width, height = driver.execute_script(
        "let d = document.documentElement; return [d.clientWidth, d.scrollHeight]"
    )
    for k, top in enumerate(range(0, height, TALLEST)):
        clip = {"x": 0, "y": top, "width": width, "scale": 1}
        clip["height"] = min(TALLEST, height - top)
        wanted = {"captureBeyondViewport": True, "clip": clip}
        taken = driver.execute_cdp_cmd("Page.captureScreenshot", wanted)
        Path(f"{path}_{k}.png").write_bytes(base64.b64decode(taken["data"]))


def main(folder, pictures=None):
    """Exit 1 if a page asks another host for anything, has an error or does not fit."""
    pages, failed = sorted(Path(folder).rglob("*.html")), 0
    pages = [page for page in pages if "reveal" not in page.parts]  # not our own
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile)
        try:
            for page in pages:
                elsewhere, errors = visit(driver, page)
                found = [*elsewhere, *errors, *too_wide(driver)]
                failed += bool(found)
                for line in found:
                    print(f"{page}: {line}")
                if pictures:
                    os.makedirs(pictures, exist_ok=True)
                    name = "_".join(page.relative_to(folder).with_suffix("").parts)
                    photograph(driver, Path(pictures) / name)
        finally:
            driver.quit()
    print(f"{len(pages)} pages opened, {failed} with something to complain about")
    return 1 if failed or not pages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
