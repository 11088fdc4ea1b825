"""The page of `btcp_tf.review` in a browser: operated by keyboard, its file of decisions read back.

These tests need Chromium and the extra `browser`: `pytest -m browser -n0`.
"""

import csv
import dataclasses
import json

import numpy as np
import production
import pytest

from btcp_tf import review
from btcp_tf.evaluation import tabular

pytestmark = pytest.mark.browser

N, BUDGET, AUDIT = 300, 6, 8
NAMES = ("cat", "dog", "cow", "=1+1", "a, b", 'say "x"', "ox <b>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("review")
    answers = production.answers(N, 1)
    production.write_run(place / "run", production.answers(400, 0))
    images = np.random.default_rng(0).integers(0, 256, (N, 28, 28), np.uint8)
    np.savez(place / "x.npz", x_test=images)
    production.write_csv(place / "scores.csv", production.rows_of(answers))
    flags = [f"--budget={BUDGET}", f"--audit={AUDIT}", f"--input={place / 'x.npz'}"]
    assert review.main([f"--scores={place}/scores.csv", f"--baseline={place}/run", *flags]) == 0
    # The same with seven classes, whose names are hard to write.
    rows = production.rows_of(answers)
    for row in rows:
        row |= {"input": f"={row['input']}", "class_name": NAMES[row["predicted"]]}
        row["probs"] = [*row["probs"], 0.0, 0.0, 0.0, 0.0]
    production.write_csv(place / "many.csv", rows)
    baseline = dataclasses.replace(production.answers(400, 0), probs=None)
    production.write_run(place / "of many", baseline, names=NAMES)
    flags = [f"--baseline={place}/of many", *flags[:2]]
    assert review.main([f"--scores={place}/many.csv", *flags]) == 0
    return place


@pytest.fixture
def visit(new_page, folder):
    def open_(width=1280, scheme="light", name="scores", context=None, script=True):
        path = folder / f"{name}.csv-review" / "review.html"
        return new_page(path.as_uri(), width, scheme, script, context)

    return open_


def shown(page):
    return page.locator(".item:visible")


def saved(page, folder, name="decisions.csv"):
    with page.expect_download() as found:
        page.keyboard.press("d")
    assert found.value.suggested_filename.endswith("-decisions.csv")
    found.value.save_as(folder / name)
    return folder / name


def test_the_keyboard_decides_and_the_file_has_it(visit, folder, capsys):
    page, answers = visit(), production.answers(N, 1)
    queue = json.loads((folder / "scores.csv-review" / "queue.json").read_text())
    sample = [row for row in queue["sample"] if row not in queue["checked_first"]]
    rows = [*queue["checked_first"], *sample]
    for row in rows:
        item = shown(page)
        assert item.count() == 1 and item.get_attribute("data-row") == str(row)
        assert "The model says" in item.inner_text() and "\nu " in item.inner_text()
        label = str(answers.labels[row])
        choices = item.locator(".choices button")
        key = 1 + [one.get_attribute("data-label") for one in choices.all()].index(label)
        page.keyboard.press(str(key))
    assert f"{len(rows)} of {len(rows)} decided" in page.locator(".counts").inner_text()
    table = tabular.read(saved(page, folder))
    assert table.class_numbers("row").tolist() == rows
    assert table.class_numbers("label").tolist() == answers.labels[rows].tolist()
    assert table.values["label_name"] == [production.NAMES[k] for k in answers.labels[rows]]
    places = dict(zip(rows, table.values["place_in_sample"], strict=True))
    assert [int(places[row]) for row in queue["sample"]] == list(range(1, AUDIT + 1))
    drawn = {float(p) for p in table.values["inclusion_probability"] if p is not None}
    assert drawn == {AUDIT / N}
    assert page.failed == []
    # And back.
    back = review.main(
        [
            f"--scores={folder}/scores.csv",
            f"--baseline={folder}/run",
            f"--labels={folder}/decisions.csv",
        ]
    )
    assert back in (0, 3, 4)
    verdicts = json.loads((folder / "scores.csv-review" / "monitor.json").read_text())
    assert verdicts["promise"]["labeled"] == AUDIT


def test_every_other_key_does_what_the_page_says(visit):
    page = visit()
    first = shown(page).get_attribute("data-row")
    page.keyboard.press("ArrowRight")
    second = shown(page).get_attribute("data-row")
    assert second != first and "0 of" in page.locator(".counts").inner_text()
    page.keyboard.press("s")
    assert "1 unsure" in page.locator(".counts").inner_text()
    page.keyboard.press("x")
    assert "1 wrong" in page.locator(".counts").inner_text()
    third = shown(page).get_attribute("data-row")
    page.keyboard.press("z")
    assert "0 wrong" in page.locator(".counts").inner_text()
    assert shown(page).get_attribute("data-row") != third
    page.keyboard.press("ArrowLeft")
    assert shown(page).get_attribute("data-row") == second
    assert shown(page).locator("[data-word=unsure]").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert shown(page).get_attribute("data-row") == first
    # What a page does by single keys can be switched off.
    page.locator("#keys").uncheck()
    page.locator("h1").click()
    page.keyboard.press("1")
    assert shown(page).get_attribute("data-row") == first
    for key in ("1", "2", "3", "x", "s", "z", "d", "←", "→"):
        assert page.locator("#how kbd", has_text=key).count() >= 1, key


def test_decisions_are_kept_when_the_page_is_opened_again(visit):
    page = visit()
    page.keyboard.press("1")
    page.keyboard.press("x")
    row = shown(page).get_attribute("data-row")
    again = visit(context=page.context)
    assert "2 of" in again.locator(".counts").inner_text()
    assert shown(again).get_attribute("data-row") == row
    assert not again.locator("#unsaved").is_visible()


def test_a_browser_that_keeps_nothing_is_told_so(browser, folder):
    context = browser.new_context()
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    )
    page = context.new_page()
    page.goto((folder / "scores.csv-review" / "review.html").as_uri())
    assert page.locator("#unsaved").is_visible()
    page.keyboard.press("1")
    assert "1 of" in page.locator(".counts").inner_text()
    context.close()


def test_another_class_is_typed_and_strange_names_come_back_whole(visit, folder):
    page = visit(name="many")
    rows = []
    for name in ('say "x"', "a, b", "=1+1", "ox <b>"):
        rows.append(int(shown(page).get_attribute("data-row")))
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "other"
        page.keyboard.type(name)
        page.keyboard.press("Enter")
    page.keyboard.press("/")
    page.keyboard.type("unicorn")
    page.keyboard.press("Enter")
    assert 'No class is called "unicorn"' in page.locator("#other-fault").inner_text()
    page.keyboard.press("Escape")
    assert "4 of" in page.locator(".counts").inner_text()
    with open(saved(page, folder, "many.csv-decided.csv"), newline="", encoding="utf-8") as file:
        found = {int(line["row"]): line for line in csv.DictReader(file)}
    wanted = ('say "x"', "a, b", "'=1+1", "ox <b>")
    for row, name in zip(rows, wanted, strict=True):
        assert found[row]["label_name"] == name and found[row]["decision"] == "wrong"
        assert found[row]["input"].startswith("'=")


def test_what_is_shown_can_be_chosen(visit):
    page = visit()
    page.keyboard.press("1")
    page.locator("#show").select_option("sample")
    assert "random sample" in shown(page).inner_text()
    page.locator("#show").select_option("open")
    page.locator("h1").click()
    assert "2 of" in shown(page).inner_text()
    for _ in range(BUDGET + AUDIT):
        page.keyboard.press("1")
    page.locator("#show").select_option("")
    page.locator("#show").select_option("open")
    assert shown(page).count() == 0 and page.locator(".none").is_visible()
    page.locator("h1").click()
    page.keyboard.press("1")
    assert page.failed == []


@pytest.mark.parametrize(
    ("width", "scheme"), [(w, s) for w in (1280, 390) for s in ("light", "dark")]
)
def test_no_fault_that_axe_finds(visit, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(width, scheme)
    page.keyboard.press("x")
    found = Axe().run(page).response
    told = [
        f"{fault['id']}: {node['html'][:150]} {node.get('failureSummary', '')[:200]}"
        for fault in found["violations"]
        for node in fault["nodes"][:3]
    ]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("width", [1280, 390])
def test_picture_answer_and_choices_are_on_the_first_screen(visit, width):
    page = visit(width)
    page.keyboard.press("1")
    height = page.viewport_size["height"]
    for wanted in (".shown img", "h2", ".u", ".choices li:last-child"):
        box = shown(page).locator(wanted).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= height, wanted
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, wanted
    assert shown(page).locator("img").bounding_box()["height"] > 0.25 * height
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_where_classes_are_digits_a_key_means_its_class(visit, folder):
    rows = production.rows_of(production.answers(N, 1), names=("0", "1", "2"))
    production.write_csv(folder / "digits.csv", rows)
    assert review.main([f"--scores={folder}/digits.csv", "--budget=5", "--audit=0"]) == 0
    page, wanted = visit(name="digits"), ["2", "0", "1", "2", "0"]
    for key in ("2", "0", "9", "1", "2", "0"):  # No class is called 9.
        page.keyboard.press(key)
    assert "5 of 5 decided" in page.locator(".counts").inner_text()
    table = tabular.read(saved(page, folder, "digits-decisions.csv"))
    assert table.values["label_name"] == wanted and table.values["label"] == wanted
    for item in page.locator(".choices").all():
        for button in item.locator("button").all():
            assert button.locator("kbd").inner_text() == button.locator("span").inner_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_row_leaves_room_for_the_choices(visit, folder, width):
    header = ",".join(["input", *(f"column {number}" for number in range(40))])
    rows = [f"=x_test[{row}],{','.join(map(str, range(40)))}" for row in range(N)]
    (folder / "table.csv").write_text("\n".join([header, *rows]) + "\n")
    flags = [f"--input={folder / 'table.csv'}", f"--output_dir={folder / 'rows.csv-review'}"]
    assert review.main([f"--scores={folder}/many.csv", *flags, "--budget=2", "--audit=2"]) == 0
    page = visit(width, name="rows")
    page.keyboard.press("1")
    box = shown(page).locator(".choices li:first-child").bounding_box()
    assert box["y"] + box["height"] <= page.viewport_size["height"]
    assert "column 39" in shown(page).locator(".fields").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_asks_no_network_and_stands_without_a_script(visit, folder):
    page = visit()
    page.wait_for_load_state("networkidle")
    path = (folder / "scores.csv-review" / "review.html").as_uri()
    assert [url for url in page.asked if not url.startswith("data:")] == [path]
    plain = visit(script=False)
    assert plain.locator(".item:visible").count() == page.locator(".item").count()
    assert "Decisions need JavaScript" in plain.locator("main").inner_text()
