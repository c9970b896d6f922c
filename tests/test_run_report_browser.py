"""report.html in Chromium: it draws, hovers, filters, sorts and explores, asks for nothing, and excludes nobody."""

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vit_jax.extras.report.command import report

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
# `npm install --prefix .venv axe-core@4.14` puts it there; .ci/run does, and installs the browser, where it can.
AXE = Path(sys.prefix, "node_modules/axe-core/axe.min.js")
QUIET = ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage")
QUIET += ("disable-background-networking", "disable-component-update", "disable-sync")
VIEWS = {"wide": (1280, "light"), "narrow": (390, "dark")}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A browser that keeps its console and all requests."""
    if not CHROMIUM or not shutil.which("chromedriver"):
        pytest.skip("there is no Chromium here: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.common.exceptions import SessionNotCreatedException

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*QUIET, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        opened = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    except SessionNotCreatedException as error:
        pytest.skip(f"Chromium does not start here: {error.msg}")
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{what: the folder of a tiny run}, each trained to its end by the command, on data that is made here."""
    import jax

    from vit_jax.commands import train as command
    from vit_jax.extras.sets.prepare import SetArrays, write_set

    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    pixels = {split: rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for split, n in (("train", 300), ("test", 200))}
    labels = {split: np.arange(len(x)) % 100 for split, x in pixels.items()}
    (folder / "sets").mkdir()
    write_set(folder / "sets", "cifar100", SetArrays(pixels, labels, tuple(map(str, range(100)))))
    text = "--model.text.width 16 --model.text.heads 2 --model.text.hidden 32 --model.text.decoder-depth 2"
    vit = "--model.vit.width 16 --model.vit.heads 2 --model.vit.hidden 32 --model.vit.depth 1"
    image = "--model.width 16 --model.heads 2 --model.hidden 32 --model.depth 2"
    both = "--model.width 16 --model.heads 2 --model.hidden 32 --model.encoder-depth 2 --model.decoder-depth 2"
    lines = {
        "digits": f"digits {image} --epochs 2",
        "cifar100": f"cifar100-768x3 {image} --epochs 2 --batch 50 --data.dir {folder / 'sets'}",
        "numbers": f"numbers {both} --epochs 1",
        "shapes": f"shapes {vit} {text} --epochs 1 --batch 1000",
    }
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, line in lines.items():
            assert command.command([*line.split(), "--name", name]) == 0
    jax.config.update("jax_disable_most_optimizations", False)
    return {name: folder / "runs" / name for name in lines}


class Opened:
    """A page in the browser."""

    def __init__(self, driver, path, view="wide"):
        self.driver, (width, scheme) = driver, VIEWS[view]
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)
        driver.get(path.as_uri())
        self.wait("return document.documentElement.dataset.drawn === 'true'")

    def do(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments):
        """Until the script returns something that is true, for at most ten seconds."""
        for _ in range(100):
            if found := self.js(script, *arguments):
                return found
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def texts(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def press(self, selector, *keys):
        """Put the focus on an element, as Tab does, and press keys."""
        element = self.driver.find_element("css selector", selector)
        self.js("arguments[0].focus()", element)
        assert self.js("return document.activeElement === arguments[0]", element)
        element.send_keys(*keys)

    def hover(self, selector, x, y):
        """Point at a place of an element, in shares of its width and height."""
        box = self.js(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]",
            selector,
        )
        self.do("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + x * box[2], y=box[1] + y * box[3])

    def tooltips(self):
        """The texts of Bokeh's tooltips, which are in the shadows of its elements."""
        return self.js(
            "const all = (n) => [...n.querySelectorAll('*')].flatMap("
            "(e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);"
            "const values = all(document).filter((e) => e.className === 'bk-tooltip-row-value');"
            "return values.map((e) => e.textContent.trim())"
        )

    def sought(self, selector):
        """The texts of tooltips after pointing at one place of an element after the other, until there is one."""
        for y in np.linspace(0.1, 0.8, 6):
            for x in np.linspace(0.15, 0.95, 110):
                self.hover(selector, float(x), float(y))
                if found := self.tooltips():
                    return found
        raise AssertionError(f"{selector} has no tooltip anywhere")

    def violations(self):
        """What axe finds, by a script that the page's policy does not bind."""
        self.do("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
        found = self.do(
            "Runtime.evaluate",
            expression="axe.run().then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.nodes[0].html])))",
            awaitPromise=True,
            returnByValue=True,
        )
        return json.loads(found["result"]["value"])

    def close(self):
        """Nothing may be on the console but Bokeh's greetings, and nothing may have been asked for."""
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        asked = [url for url in asked if not url.startswith(("data:", "about:", "chrome:"))]
        assert not said and len(asked) == 1 and asked[0].startswith("file:"), (said, asked)


@pytest.fixture
def opened(driver):
    pages = []

    def open_page(path, view="wide"):
        pages.append(Opened(driver, path, view))
        return pages[-1]

    yield open_page
    for page in pages[-1:]:
        page.close()


@pytest.mark.parametrize("name", ["digits", "cifar100"])
def test_a_classifier_is_hovered_filtered_sorted_and_explored(name, trained, opened):
    page = opened(trained[name] / "report.html")
    kept = json.loads((trained[name] / "plots/classes.json").read_text())
    triples = np.array(kept["confusion"]).reshape(-1, 3)
    curve, epoch, loss = page.sought("#chart-0")[:3]
    assert curve in ("training", "validation") and 0 < float(epoch) <= 2 and float(loss) > 0

    true, predicted, count = page.sought("#matrix")
    i, j = kept["names"].index(true), kept["names"].index(predicted)
    assert [i, j, int(count)] in triples.tolist()

    wanted = kept["names"][5]
    page.press("#filter-name", wanted)
    page.press("#filter-wrong", " ")
    fits = [k for k, each in enumerate(kept["names"]) if wanted in each]
    rows = [(i, j, n) for i, j, n in triples.tolist() if i != j and (i in fits or j in fits)]
    said = page.texts("#filter-said")[0]
    assert said.startswith(f"{len(rows)} cells with {sum(n for *_, n in rows)} examples pass the filter")
    assert len(page.texts("#mistakes tbody tr")) == min(len(rows), 100)
    cells = "return Bokeh.documents.map((d) => d.get_model_by_name('cells')).find((m) => m).data.count.length"
    assert page.js(cells) == len(rows)

    page.press("table.sortable th:nth-child(4) button", "\ue007")  # Enter: by recall, the lowest first
    recalls = [float(text) for text in page.texts("table.sortable tbody td:nth-child(4)")]
    np.testing.assert_allclose(recalls, sorted(kept["scores"]["recall"]), atol=5e-5)
    page.press("table.sortable th:nth-child(4) button", " ")
    assert page.js("return document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "descending"

    before = page.texts("#attention .said")[0]
    page.press("#attention [data-control=query] select", "\ue011", "\ue015")  # Home, then the next token
    after = page.texts("#attention .said")[0]
    attention = json.loads((trained[name] / "plots/attention.json").read_text())
    tokens = [*attention["prefix"], "row 1, column 1", "row 1, column 2"]
    first = tokens[0] if attention["prefix"] else "all tokens (mean)"
    assert before.startswith(f"Most attention from {first} (") and after.startswith(
        f"Most attention from {tokens[1]} ("
    )
    page.press("#attention [data-control=layer] select", "\ue013")
    page.press("#attention [data-control=head] select", "\ue013")
    page.js("document.querySelector('#attention .patches').children[7].click()")
    assert page.texts("#attention .said")[0] not in (before, after)
    shares = page.js("return [...document.querySelectorAll('#attention .patches i')].map((e) => e.title)")
    assert len(shares) == np.prod(attention["examples"][0]["grid"])
    page.press("#positions [data-control=query] select", "\ue015")
    assert page.texts("#positions .said")[0].startswith("Most similar to row 1, column 2: row 1, column 2 1.00")


@pytest.mark.parametrize("name", ["numbers", "shapes"])
def test_texts_are_explored_word_by_word(name, trained, opened):
    page = opened(trained[name] / "report.html")
    kept = json.loads((trained[name] / "plots/attention.json").read_text())["examples"]
    assert page.texts("#attention .words button") == kept[0]["queries"]
    page.press("#attention .words button:nth-child(2)", "\ue007")
    words = page.js("return [...document.querySelectorAll('#attention [aria-pressed=true]')].map((e) => e.textContent)")
    assert words == [kept[0]["queries"][1]]
    assert page.texts("#attention .said")[0].startswith(f"Most attention from {kept[0]['queries'][1]} (")
    page.press("#attention [data-control=example] select", "\ue015")
    assert page.texts("#attention .words button") == kept[1]["queries"]
    assert len(page.texts("#attention .picture")) == 2 * ("image" in kept[0])
    assert bool(page.texts(".texts li")) or "0 of" in "".join(page.texts("main"))


def test_a_comparison_names_the_field_that_differs_in_its_first_screen(trained, opened, tmp_path):
    path = report(trained["digits"], trained["cifar100"], out=tmp_path / "both.html")
    page = opened(path, "narrow")
    place = page.js("return document.querySelector('#differing-title + div tbody tr').getBoundingClientRect()")
    assert place["bottom"] < 900 and page.sought("#chart-0")[0] in ("digits", "cifar100")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["digits", "cifar100", "numbers", "shapes"])
def test_nobody_is_excluded_and_nothing_sticks_out(name, view, trained, opened):
    page = opened(trained[name] / "report.html", view)
    assert page.js("return document.documentElement.scrollWidth <= innerWidth")
    if not AXE.exists():
        pytest.skip("axe-core is not here: npm install --prefix .venv axe-core@4.14")
    assert page.violations() == []


def test_names_of_classes_are_text_also_in_a_tooltip(trained, opened, tmp_path):
    folder = tmp_path / "evil"
    shutil.copytree(trained["digits"], folder)
    content = json.loads((folder / "plots/classes.json").read_text())
    content["names"] = ["<img src=x onerror='window.broken=1'><script>window.broken=1</script>"] * 10
    (folder / "plots/classes.json").write_text(json.dumps(content))
    page = opened(report(folder))
    assert page.sought("#matrix")[0] == content["names"][0]
    assert page.js("return window.broken") is None
    folders = [folder, shutil.copytree(folder, tmp_path / "<img src=x onerror='window.broken=1'>")]
    page = opened(report(folders, out=tmp_path / "both.html"))
    assert folders[1].name in page.sought("#chart-0")[::3]
    assert page.js("return window.broken") is None
