"""The pages that Tutti writes, in a real Chromium: light and dark, wide and 420 px, no console message, no request.

    test_pages.py TUTTI

Exit code 77: no Chromium on this machine (Debian's package: chromium).
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

from browser import Browser, find

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = (1100, 420)
# What a page shows after it has loaded.
SHOWN = """(() => {
  const text = document.querySelector("svg text, p"), style = getComputedStyle(document.body);
  return {wide: document.documentElement.scrollWidth, inner: innerWidth,
    paper: style.backgroundColor, ink: style.color,
    letters: text ? getComputedStyle(text)[text.closest("svg") ? "fill" : "color"] : "",
    pictures: document.querySelectorAll("svg").length, doing: document.body.dataset.doing || ""};
})()"""


def look(browser, file, width, scheme, at=""):
    """What the page shows, what the console said, and what was asked for beside the file."""
    page = browser.page()
    page.open(file.as_uri() + at, width, scheme=scheme)
    shown = page.value(SHOWN)
    requests = [url for url in page.requests if not url.startswith((file.as_uri(), "data:"))]
    return shown, page.problems, requests


def brightness(colour):
    red, green, blue = (int(float(part)) for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


def pages_of(tutti, folder):
    def run(*words):
        done = subprocess.run([tutti, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"tutti {' '.join(words)}: {done.stdout[-800:]}{done.stderr[-800:]}")

    config = "docs/lectures/tiny.toml"
    short = ["--set", "train.steps=4", "--set", "log.trace=true", "--set", "log.trace_steps=1"]
    for name, ranks in (("one", 1), ("two", 2)):
        run("train", config, "--out", f"{folder}/{name}", "--ranks", str(ranks), *short)
    run("report", f"{folder}/two", "--step", f"{folder}/measured.html")
    run("report", f"{folder}/one", f"{folder}/two", "--out", f"{folder}/comparison.html")
    run("rehearse", config, "--cluster", "h100", "--ranks", "8", "--set", "parallel.tp=2", "--set", "parallel.pp=2",
        "--set", "parallel.zero=1", "--html", f"{folder}/step.html", "--per-host", "4")
    run("plan", "--model", "llama3.2-1b", "--cluster", "h100", "--gpus", "16", "--global-batch", "64", "--seq-len", "2048",
        "--html", f"{folder}/plan.html")
    run("plan", "--parameters", "175e9", "--tokens", "300e9", "--html", f"{folder}/loss.html")
    run("hardware", "--html", f"{folder}/devices.html")
    names = ("two/report", "measured", "comparison", "step", "plan", "loss", "devices")
    return {name: pathlib.Path(folder) / f"{name}.html" for name in names}


def main():
    if find() is None:
        print("skipped: no chromium on this machine; Debian's package is called chromium")
        sys.exit(77)
    wrong = []
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        faulty = pathlib.Path(folder) / "faulty.html"
        faulty.write_text('<html><body><p>x</p><div style="width:700px">wide</div><script>console.error("heard")</script>'
                          '<img src="http://127.0.0.1:9/a.png"></body></html>', encoding="utf-8")
        shown, problems, requests = look(browser, faulty, 420, "light")
        if not problems or not requests or shown["wide"] <= 420:
            raise SystemExit(f"the test is blind: {shown} {problems} {requests}")
        for name, page in pages_of(sys.argv[1], folder).items():
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    shown, problems, requests = look(browser, page, width, scheme)
                    paper = brightness(shown["paper"])
                    checks = {
                        f"console: {problems}": not problems,
                        f"requests: {requests}": not requests,
                        f"wider than its window: {shown}": shown["inner"] == width and shown["wide"] <= width,
                        f"colours: {shown}": (paper < 90) == (scheme == "dark")
                        and all(abs(paper - brightness(shown[part])) > 90 for part in ("ink", "letters")),
                        "no picture": shown["pictures"] > 0,
                    }
                    wrong += [f"{name}, {width} px, {scheme}: {what}" for what, good in checks.items() if not good]
        measured = (pathlib.Path(folder) / "measured.html").read_text(encoding="utf-8")
        data = json.loads(re.search(r'id="data">(.*?)</script>', measured, re.DOTALL)[1])
        if not all(rank["memory"] for rank in data["ranks"]) or "Memory by purpose" not in measured:
            wrong.append("the page of a traced step shows no memory")
        steps = {at: look(browser, pathlib.Path(folder) / "step.html", 1100, "light", at)[0]["doing"]
                 for at in ("#t=0.05", "#t=0.5", "#t=0.999,rank=3")}
        if len(set(steps.values())) < 3 or not all(steps.values()):
            wrong.append(f"the slider changes nothing: {steps}")
    print("\n".join(wrong) or f"every page, {len(WIDTHS)} widths, light and dark; the slider showed {steps}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
