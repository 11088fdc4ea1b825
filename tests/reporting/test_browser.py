"""Every page in a browser, wide and narrow, light and dark: what is read first, and by whom.

These tests need Chromium and the extra `browser`: `pytest -m browser -n0`.
"""

import dataclasses
import importlib.util
import io

import numpy as np
import production
import pytest
import test_report
from PIL import Image

from btcp_tf import monitor, thresholds
from btcp_tf.decisions.decision_file import Decision
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.keys import CLASSIFIER
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.reporting import run_page, scores_page, study_page

pytestmark = pytest.mark.browser

CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress")
PAGES = ("run", "scores", "study", "monitor")
SCREENS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


def test_what_these_tests_need_is_there():
    assert importlib.util.find_spec("playwright") and importlib.util.find_spec(
        "axe_playwright_python"
    ), "expected the extra `browser`: pip install .[browser]"


def make_answers(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    doubt = rng.beta(0.7, 3, n)
    predicted = np.where(rng.random(n) < doubt, (labels + 1) % 4, labels)
    noise = rng.normal(0, 0.06, (2, n))
    columns = {
        "mcp": np.clip(0.6 * doubt + 3 * np.abs(noise[0]), 0, 1),
        "residual": np.clip(doubt + noise[1], 0, 1),
    }
    return Predictions(labels, None, predicted, columns)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Path of each page by its name."""
    return make_pages(tmp_path_factory.mktemp("pages"))


def make_pages(folder):
    (folder / "study").mkdir()
    test_report.make_study(folder / "study")
    test, calibration = make_answers(600, 1), make_answers(500, 2)
    chosen = thresholds.target_risk(
        calibration.is_error, calibration.uncertainty["residual"], risk=0.15, delta=0.1
    )
    files = np.array([str(folder / f"{row}.png") for row in range(600)])
    run = run_page.write_run_report(
        folder / "run",
        test_report.make_rows(test, dataset="digits"),
        {CLASSIFIER: test},
        test_report.make_history(("residual",)),
        images=np.random.default_rng(0).integers(0, 256, (600, 9, 8, 3), np.uint8),
        class_names=CLASSES,
        settings={"seed": "3"},
        notes=["residual: 300 wrong answers taught it", "part: 600 of 10,000 images"],
        saved_model="saved_models/digits/1",
        decision=Decision(chosen, CLASSIFIER, "residual", calibration),
        explanations=Explanations(
            "residual",
            ("answer", "neighbors", "image_head"),
            np.random.default_rng(1).normal(0, 2, (600, 3)),
        ),
        files=files,
    )
    predictions.save_predictions(folder / "scores.npz", test)
    scores, _ = scores_page.write_predictions_report(folder / "scores.npz", bootstrap_draws=20)
    production.write_run(folder / "baseline", production.answers(400, 0))
    later = production.rows_of(production.answers(500, 1, harder=0.1), labels=True)
    today = production.write_csv(folder / "today.csv", later)
    monitor.main([f"--baseline={folder}/baseline", f"--scores={today}"])
    return {
        "run": run,
        "scores": scores,
        "study": study_page.write_study_report(folder / "study"),
        "monitor": folder / "today.csv-monitor" / "monitor.html",
    }


@pytest.fixture
def visit(new_page, pages):
    """Opens a page of this name; what it asks of the network stands in its `asked`."""
    return lambda name, *more, **named: new_page(pages[name].as_uri(), *more, **named)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_no_page_has_a_fault_that_axe_finds(visit, name, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(name, width, scheme)
    # What is folded has to be readable, too.
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    found = Axe().run(page).response
    told = [
        f"{fault['id']}: {node['html'][:150]} {node.get('failureSummary', '')[:200]}"
        for fault in found["violations"]
        for node in fault["nodes"][:3]
    ]
    assert not told, "\n".join(told)
    assert found["passes"]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_screen_answers(visit, name, width):
    page = visit(name, width)
    height = page.viewport_size["height"]
    for wanted in (".badge", ".answer", ".figures li:nth-child(3)"):
        box = page.locator(wanted).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= height, wanted
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, wanted
    assert page.locator(".figures li").count() == 3
    assert page.locator(".badge").inner_text().strip()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(visit, name, width):
    page = visit(name, width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", PAGES)
def test_pictures_of_figures_are_dark_in_dark_mode_alone(visit, name):
    for scheme, is_dark in (("light", False), ("dark", True)):
        picture = visit(name, scheme=scheme).locator("figure img").first
        pixels = np.asarray(Image.open(io.BytesIO(picture.screenshot())).convert("L"), np.float64)
        # The ground is most of a figure; its letters and lines stand out from it.
        assert (np.median(pixels) < 60) == is_dark, (scheme, np.median(pixels))
        assert np.ptp(pixels) > 150


@pytest.mark.parametrize("name", PAGES)
def test_no_page_asks_the_network_or_fails(visit, pages, name):
    page = visit(name)
    page.wait_for_load_state("networkidle")
    assert [url for url in page.asked if not url.startswith("data:")] == [pages[name].as_uri()]
    assert page.failed == []


def test_filters_show_what_they_say(visit):
    page = visit("run")
    cards = page.locator(".card:visible")
    everything = cards.count()
    assert everything > 24
    page.locator("[data-filter=truth]").select_option("wrong")
    wrong = cards.count()
    assert 0 < wrong < everything
    assert page.locator(".card.right:visible").count() == 0
    assert page.locator(".count").inner_text() == f"{wrong} of {everything} shown"
    page.locator("[data-filter=accept]").select_option("accepted")
    for card in cards.all():
        assert "accepted" in card.inner_text() and "wrong" in card.inner_text()
    page.locator("[data-filter=accept]").select_option("")
    page.locator("[data-filter=class]").select_option(label="Dress")
    assert 0 < cards.count() < wrong
    assert all("Dress" in card.inner_text() for card in cards.all())


def test_the_gallery_of_a_study_is_filtered_by_itself(visit):
    page = visit("study")
    cards = page.locator(".card:visible")
    everything = cards.count()
    page.locator("[data-filter=kind]").select_option("unsuspected")
    assert 0 < cards.count() < everything
    assert page.locator(".answers .count").inner_text() == f"{cards.count()} of {everything} shown"
    assert all("wrong" in card.inner_text() for card in cards.all())


@pytest.mark.parametrize("errors", [None, 4])  # Of few errors the axis has labels like 0.75 %.
@pytest.mark.parametrize("width", [1280, 390])
def test_words_stay_inside_their_figures(browser, tmp_path, width, errors):
    p = make_answers(400, 0)
    if errors is not None:
        labels = p.predicted.copy()
        last = np.argsort(p.uncertainty["residual"])[-errors:]
        labels[last] = (labels[last] + 1) % 4
        p = dataclasses.replace(p, labels=labels)
    columns = {"uncertainty": p.uncertainty["residual"], "a_column_of_theirs": p.uncertainty["mcp"]}
    predictions.save_predictions(tmp_path / "s.npz", dataclasses.replace(p, uncertainty=columns))
    path, _ = scores_page.write_predictions_report(tmp_path / "s.npz", bootstrap_draws=5)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    outside = page.evaluate(
        """() => [...document.querySelectorAll("svg[role=img] text")].filter((text) => {
          const [inner, outer] = [text, text.closest("svg")].map((e) => e.getBoundingClientRect());
          return inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
            inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
        }).map((text) => text.textContent)"""
    )
    assert outside == []
    if errors is not None:
        assert page.locator("svg.chart text", has_text="0.75 %").count()
    assert page.locator("svg.chart").count() and page.locator("svg.matrix").count() == 1
    page.close()


def test_a_click_sorts_a_table_and_another_the_other_way(visit):
    page = visit("run")
    table = page.locator("table.sortable", has_text="95 % intervals in brackets").first
    head = table.locator("thead button", has_text="AURC")

    def column():
        cells = table.locator("tbody tr td:nth-child(4) data").all()
        return [float(cell.get_attribute("value")) for cell in cells]

    before = column()
    assert len(before) == 2
    head.click()
    assert column() == sorted(before)
    assert table.locator("[aria-sort=ascending]").count() == 1
    head.focus()
    page.keyboard.press("Enter")
    assert column() == sorted(before, reverse=True)


@pytest.mark.parametrize("name", PAGES)
def test_without_a_script_everything_is_there(visit, name):
    with_script = visit(name).locator("main").inner_text
    page = visit(name, script=False)
    assert page.locator(".filters:visible").count() == 0
    shown = page.locator("main").inner_text()
    for words in visit(name).locator("h2, .card, .figures li, .steps li").all_inner_texts():
        assert words.split("\n")[0] in shown
    assert len(shown) > 0.9 * len(with_script()) - 600
    for summary in page.locator("details summary").all()[:1]:
        summary.click()
        assert page.locator("details[open]").count() == 1


@pytest.mark.parametrize("name", ["run", "study", "monitor"])
def test_verdicts_are_on_a_phone_without_scrolling_a_table(visit, name):
    page = visit(name, 390)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    found = page.evaluate(
        """() => {
          const words = ["better", "worse", "not distinguishable", "kept", "broken", "changed",
                         "no finding", "not achievable", "above it, perhaps by chance"];
          const rows = [...document.querySelectorAll("tbody tr")];
          const hit = (cell) => words.some((word) => cell.innerText.includes(word));
          return rows.filter((row) => [...row.cells].slice(1).some(hit)).map((row) =>
            [...row.cells].slice(1).find(hit).getBoundingClientRect().left + 60);
        }"""
    )
    assert found and max(found) <= 390


def test_a_card_links_to_its_file_and_says_why(visit):
    page = visit("run")
    first = page.locator(".card").first
    link = first.locator("a").get_attribute("href")
    assert link.startswith("file://") and link.endswith(".png")
    assert first.locator(".why li").count() >= 1


def test_paper_has_no_controls_and_all_that_is_folded(visit, tmp_path):
    page = visit("run")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and not page.locator(".filters").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0


def test_a_page_that_is_too_small_for_a_gallery_is_no_fault(tmp_path, browser):
    predictions.save_predictions(tmp_path / "s.npz", make_answers(3, 0))
    path, _ = scores_page.write_predictions_report(tmp_path / "s.npz", bootstrap_draws=5)
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.locator(".card").count() <= 3
    page.close()
