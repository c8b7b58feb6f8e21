#!/usr/bin/python3
"""Pages of `spillway report` in headless Chromium: report_test.py PROGRAM FOLDER

Opens a page about a trace, a run, a sweep and a hostile trace at several widths, light and dark, as a person would: no
message in the console, nothing loaded, no text over another, tables that sort, timelines that zoom and answer. FOLDER
keeps the pages and their screenshots. Exit code 77: skipped, with the reason.
"""

import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import time


def skip(why):
    print(f"skipped: {why} (scripts/install-dependencies --browser)")
    sys.exit(77)


try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
except ImportError:
    skip("python3-selenium is not installed")

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
TINY = ["--model", "gpt-tiny", "--batch", "4", "--micro-batch", "2", "--sequence", "32", "--machine", "testbed"]
WIDTHS = [1000, 1280, 1600]
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        print(f"failed: {what}")
        sys.exit(1)


def spillway(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, f"spillway {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def browser():
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        skip("chromium or chromedriver is not installed")
    options = Options()
    options.binary_location = program
    for word in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--force-device-scale-factor=1", "--window-size=1280,1000"]:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Page:
    """A page that is open."""

    def __init__(self, chrome, path):
        self.chrome, self.path = chrome, path
        chrome.get_log("browser")
        chrome.get(path.as_uri())
        self.wait(lambda: self.run("return document.documentElement.dataset.ready"), "the page's scripts end")
        check(self.run("return document.documentElement.dataset.ready") == "yes", f"{path.name}: {self.trouble()}")

    def run(self, script, *arguments):
        return self.chrome.execute_script(script, *arguments)

    def wait(self, holds, what):
        until = time.monotonic() + 60
        while not holds():
            check(time.monotonic() < until, f"{self.path.name}: waited in vain: {what}")
            time.sleep(0.05)

    def trouble(self):
        return self.run("return document.getElementById('trouble').textContent")

    def find(self, selector):
        found = self.chrome.find_elements("css selector", selector)
        check(found, f"{self.path.name}: there is {selector}")
        return found

    def check_console(self):
        messages = self.chrome.get_log("browser")
        check(not messages, f"{self.path.name}: the console is silent: {messages}")

    def set(self, width, dark):
        self.chrome.set_window_size(width, 1000)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        # Two frames: one for the sizes, one for what is drawn after them.
        self.chrome.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 60)))")

    def picture(self, name):
        height = min(self.run("return document.documentElement.scrollHeight") + 160, 9000)
        size = self.chrome.get_window_size()
        self.chrome.set_window_size(size["width"], height)
        time.sleep(0.3)
        self.chrome.save_screenshot(str(FOLDER / f"{self.path.stem}-{name}.png"))
        self.chrome.set_window_size(size["width"], size["height"])

    def check_layout(self, width):
        wide = self.run("return document.documentElement.scrollWidth")
        check(wide <= width, f"{self.path.name}: {wide} pixels at a width of {width}")
        over = self.run(OVERLAPS)
        check(not over, f"{self.path.name}: at a width of {width} texts lie over each other: {over}")


# Pairs of texts in one chart, and of cards of the summary, whose boxes meet; texts that leave their chart.
OVERLAPS = """
const found = [], boxes = (list) => [...list].map((one) => [one.textContent, one.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
const groups = [...document.querySelectorAll('.chart > svg')].map((svg) => boxes(svg.querySelectorAll('text')));
groups.push(boxes(document.querySelectorAll('.facts > div')), boxes(document.querySelectorAll('h1, h2, .subtitle')));
for (const list of groups)
  for (let i = 0; i < list.length; ++i)
    for (let k = i + 1; k < list.length; ++k) if (meet(list[i][1], list[k][1])) found.push([list[i][0], list[k][0]]);
for (const svg of document.querySelectorAll('.chart > svg')) {
  const all = svg.getBoundingClientRect();
  for (const [text, box] of boxes(svg.querySelectorAll('text')))
    if (box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1) found.push([text, 'edge']);
}
return found.slice(0, 5)"""


def check_tables(page):
    """A click on a title sorts by it, another one the other way round."""
    tables = page.find("table.sortable")
    check(len(tables) >= 3, "there are tables")
    values = """return [...arguments[0].tBodies[0].rows].map((row) => row.cells[arguments[1]])
                  .map((cell) => cell.dataset.value === undefined ? null : Number(cell.dataset.value))"""
    numbers = 0
    for table in tables:
        heads = table.find_elements("css selector", "th")
        for column, head in enumerate(heads):
            if "number" not in (head.get_attribute("class") or ""):
                continue
            button = head.find_element("css selector", "button")
            for direction, up in (("descending", False), ("ascending", True)):
                page.run("arguments[0].click()", button)
                check(head.get_attribute("aria-sort") == direction, f"{head.text} says {direction}")
                seen = [value for value in page.run(values, table, column) if value is not None]
                check(seen == sorted(seen, reverse=not up), f"{head.text} is sorted: {seen}")
                numbers += len(seen)
    check(numbers > 20, "columns of numbers were sorted")


def check_timeline(page, measured):
    view = page.find("#timelines")[0]
    page.run("arguments[0].scrollIntoView({behavior: 'instant'})", view)

    def seen():
        page.chrome.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 30))")
        return float(view.get_attribute("data-from")), float(view.get_attribute("data-to"))

    def range_of(ends):
        return ends[1] - ends[0]

    canvases = page.find("canvas[tabindex]")
    check(len(canvases) == (2 if measured else 1), "a timeline of each")
    first = seen()
    page.find("[aria-label=Timeline] button")[0].click()
    check(abs(range_of(seen()) / range_of(first) - 0.5) < 0.01, "the button + shows half of it")
    canvas = canvases[0]
    canvas.send_keys("0")
    check(seen() == first, "0 shows a step again")
    canvas.send_keys("-")
    check(range_of(seen()) > range_of(first), "- shows more")
    canvas.send_keys("0+")
    before = seen()
    left, middle = -canvas.size["width"] // 4, -canvas.size["height"] // 2 + 60
    ActionChains(page.chrome).move_to_element_with_offset(canvas, left, middle).click_and_hold().move_by_offset(
        120, 0).release().perform()
    moved = seen()
    check(moved[0] < before[0] and abs(range_of(moved) - range_of(before)) < 2, "a drag moves it")
    # Every lane has tasks in a step: the keys n and p go along one, arrows from one to the other.
    canvas.send_keys("0n")
    panel = page.find(".picked")[0]
    check(panel.is_displayed(), "n picks a task")
    names = []
    for key in ("n", "n", "p", "\ue015", "c"):
        canvas.send_keys(key)
        names.append(panel.find_element("css selector", "h3").text)
    check(names[0] != names[1] and names[2] == names[0], f"n goes on, p goes back: {names}")
    check("Waited for" in panel.text and "Waits for it" in panel.text, "dependencies are listed")
    check(page.run("""const p = window.view.active, t = p.timeline, d = t.dependencies; let agree = 0;
        for (let task = 0; task < d.count; ++task)
          for (const {task: other} of d.successors(task))
            agree += d.predecessors(other).some((one) => one.task === task);
        return agree === d.to.length && agree > 0"""), "dependencies are the same from both ends")
    check(page.run("""const p = window.view.active, t = p.timeline; let wrong = 0, seen = 0;
        t.lanes.forEach((lane, l) => { for (let i = 0; i < lane.count; ++i) {
          for (const {place, why} of t.before({lane: l, i})) {
            ++seen; wrong += t.endOf(place) > lane.start[i] + (t.title.endsWith('measured') ? 1e6 : 0); } } });
        return wrong === 0 && seen > 0"""), "no task starts before what it waited for has ended")
    pressed = page.find("[aria-label=Timeline] button[aria-pressed]")[0]
    canvas.send_keys("k")
    check(pressed.get_attribute("aria-pressed") == "true", "k shows the critical path")
    canvas.send_keys("a")
    check(range_of(seen()) > range_of(first), "a shows everything")
    # Far out a column stands for many tasks: its busy time is theirs.
    check(page.run("""const lane = window.view.timelines[0].lanes[0], from = lane.start[0], to = lane.end[lane.count - 1];
        let all = 0, sum = 0;
        for (let i = 0; i < lane.count; ++i) all += lane.end[i] - lane.start[i];
        lane.eachColumn(from, to, 37, (column, group, busy) => { sum += busy * (to - from) / 37; });
        return Math.abs(all - sum) < 1e-6 * all"""), "columns add up to the tasks")
    canvas.send_keys("0")
    seen()
    # The middle of the first task of the first lane that begins in sight.
    x = page.run("""const p = window.view.pictures[0], lane = p.timeline.lanes[0];
        const i = lane.firstStartingAt(p.own(window.view.from));
        return p.x(p.common((lane.start[i] + lane.end[i]) / 2))""")
    ActionChains(page.chrome).move_to_element_with_offset(canvas, round(x) - canvas.size["width"] // 2, middle).perform()
    check(page.find(".tip")[0].is_displayed(), "the mouse is told what lies below it")
    canvas.send_keys("\ue00c")
    check(not panel.is_displayed(), "Escape lets the task go")


def check_alone(page):
    loaded = page.run("return performance.getEntriesByType('resource').map((one) => one.name)"
                      ".filter((name) => !name.startsWith('data:'))")
    check(not loaded, f"{page.path.name}: nothing is loaded: {loaded}")


def check_print(page):
    printed = page.chrome.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    check(len(printed) > 20000, "it can be printed")


def check_sizes(page):
    for width, dark in itertools.product(WIDTHS, (False, True)):
        page.set(width, dark)
        page.check_layout(width)
        page.picture(f"{width}-{'dark' if dark else 'light'}")
    page.set(1280, False)


def about_trace(chrome):
    spillway("simulate", *TINY, "--policy", "zero-infinity", "--trace", FOLDER / "trace.json")
    spillway("report", FOLDER / "trace.json", "--out", FOLDER / "trace.html")
    page = Page(chrome, FOLDER / "trace.html")
    for section in ("timeline", "stalls", "path", "work", "memory", "assumptions"):
        page.find(f"section#{section} h2")
    check_sizes(page)
    check_tables(page)
    check_timeline(page, measured=False)
    check_alone(page)
    check_print(page)
    page.check_console()


def about_run(chrome):
    run = FOLDER / "run"
    (FOLDER / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    spillway("train", *TINY, "--data", FOLDER / "text.txt", "--policy", "zero-infinity", "--steps", 8, "--run", run,
             "--no-export", "--quiet", "--overwrite")
    spillway("report", run, "--out", FOLDER / "run.html")
    page = Page(chrome, FOLDER / "run.html")
    for section in ("training", "prediction", "timeline", "stalls"):
        page.find(f"section#{section} h2")
    check(len(page.find(".chart > svg > path[fill=none]")) >= 4, "curves are drawn")
    check_sizes(page)
    check_tables(page)
    check_timeline(page, measured=True)
    check_alone(page)
    page.check_console()


def about_sweep(chrome):
    gnuplot = shutil.which("gnuplot") is not None
    (FOLDER / "sweep.toml").write_text(
        'name = "tiny"\n[fixed]\nmodel = "gpt-tiny"\nmachine = "testbed"\nsequence = 64\n'
        '[[axis]]\npolicy = ["resident", "zero-offload", "zero-infinity", "fuyou", "greedysnake"]\n'
        '[[axis]]\nbatch = [1, 2, 4, 8, 16, 32]\n[[axis]]\n"host.memory" = ["1MB", "64GB"]\n'
        '[[plot]]\nkind = "lines"\nx = "batch"\n')
    spillway("sweep", FOLDER / "sweep.toml", "--out", FOLDER / "sweep", *([] if gnuplot else ["--no-plots"]))
    spillway("report", FOLDER / "sweep", "--out", FOLDER / "sweep.html")
    page = Page(chrome, FOLDER / "sweep.html")
    if gnuplot:
        page.wait(lambda: page.run("return [...document.images].every((one) => one.complete && one.naturalWidth > 0)"),
                  "pictures are shown")
    check_sizes(page)
    rows = "return document.querySelectorAll('table.data tbody tr').length"
    check(page.run(rows) == 60, "all points are there")
    page.find("input[type=search]")[0].send_keys("fuyou 64GB")
    check(page.run(rows) == 6, "the filter keeps the rows that hold its words")
    check("6 of 60 rows" in page.find("#data-points")[0].text, "and says how many they are")
    speed = [one for one in page.find("table.data th button") if one.text == "tokens_per_second"][0]
    page.run("arguments[0].click()", speed)
    column = page.run("""return [...document.querySelectorAll('table.data th')].findIndex((one) =>
        one.textContent === 'tokens_per_second')""")
    cells = page.run("return [...document.querySelectorAll('table.data tbody tr')].map((row) => row.cells[arguments[0]])"
                     ".map((cell) => Number(cell.title || cell.textContent))", column)
    check(cells == sorted(cells, reverse=True) and cells[0] > cells[-1], f"a click sorts: {cells}")
    lines = page.run("return document.querySelectorAll('.data-table .chart svg > path[fill=none]').length")
    check(lines == 1, "the chart has the rows of the filter")
    check_alone(page)
    page.check_console()


def about_several(chrome):
    for policy in ("resident", "greedysnake"):
        spillway("simulate", *TINY, "--policy", policy, "--trace", FOLDER / f"{policy}.json.gz")
    # That of resident has no dependencies between lanes: the first one is looked at.
    spillway("report", FOLDER / "greedysnake.json.gz", FOLDER / "resident.json.gz", "--out", FOLDER / "several.html")
    page = Page(chrome, FOLDER / "several.html")
    check_sizes(page)
    check_timeline(page, measured=True)  # two timelines, one axis
    page.check_console()


def about_hostile_trace(chrome):
    """What a trace holds is not run, and would not be if it got into the page as markup."""
    attack = "\"'></script><script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"
    text = (FOLDER / "trace.json").read_text().replace('"gpu.compute"', json.dumps(attack))
    (FOLDER / "hostile.json").write_text(text)
    spillway("report", FOLDER / "hostile.json", "--out", FOLDER / "hostile.html")
    page = Page(chrome, FOLDER / "hostile.html")
    check(page.run("return window.taken === undefined"), "nothing of the trace has run")
    check("<img src=x" in page.find("section#work")[0].text, "it is shown as text")
    check(not page.chrome.find_elements("css selector", "img"), "and is no element")
    page.check_console()
    page.run("""document.body.insertAdjacentHTML('beforeend', "<img src='x' onerror='window.taken = 1'>");
                const script = document.createElement('script'); script.textContent = 'window.taken = 1';
                document.body.append(script);""")
    time.sleep(0.3)
    check(page.run("return window.taken === undefined"), "the page's policy forbids what is not its own")
    check(len(chrome.get_log("browser")) >= 2, "and says so")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    chrome = browser()
    try:
        for part in (about_trace, about_run, about_sweep, about_several, about_hostile_trace):
            began = time.monotonic()
            part(chrome)
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s")
    finally:
        chrome.quit()
    print(f"{checks} checks; pages and screenshots are in {FOLDER}")


main()
